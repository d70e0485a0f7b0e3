//! What a connection has shown of its right to use the proxy.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    access::{Access, User},
    users::{Counted, OpenPlace},
};
use crate::{error::RequestError, guesses::Guesses};

/// What a connection has shown of its right to use the proxy.
#[derive(Debug)]
pub(super) struct Standing {
    /// The address from which the client opened the connection. The handshake has shown that the
    /// client receives there. An address that the connection moves to later is not used, because
    /// the client can forge it for a moment.
    pub(super) client: SocketAddr,
    /// Who sent the last permitted request.
    pub(super) user: Option<User>,
    /// The connection's place among those of this user.
    pub(super) place: Option<OpenPlace>,
    /// Requests with a wrong token, and requests whose token the proxy did not look at.
    failures: u32,
    /// The requests without a token that the proxy reads.
    asked: u32,
}

/// The number of requests without a token that a connection may send. After them each is a failure.
const ASKED_FREE: u32 = 32;

impl Standing {
    pub(super) fn new(client: SocketAddr) -> Self {
        Self { client, user: None, place: None, failures: 0, asked: 0 }
    }

    /// Notes who sent a permitted request. The connection counts among those of this user.
    pub(super) fn be(&mut self, user: User) -> Result<User, RequestError> {
        if !self.user.as_ref().is_some_and(|old| old.is(&user)) {
            self.place = Some(user.place(Counted::Connections)?);
        }
        Ok(self.user.insert(user).clone())
    }

    /// Forgets who sent the last permitted request, if what it showed is no longer permitted.
    pub(super) fn revoke(&mut self, access: &Access) {
        if self.user.take_if(|user| !access.still_permits(user)).is_some() {
            self.place = None;
        }
    }

    /// The time for which the proxy looks at no token of this connection, because too many wrong ones
    /// came from its source. It does look at those of a connection that has shown a right one.
    pub(super) fn wait(&self, now: Instant, guesses: &Guesses) -> Option<Duration> {
        if self.user.is_some() { None } else { guesses.wait(now, self.client.ip()) }
    }

    /// Counts a wrong token.
    pub(super) fn on_wrong(&mut self, now: Instant, guesses: &mut Guesses) {
        self.failures += 1;
        guesses.count(now, self.client.ip());
    }

    /// Counts a request without a token that the proxy reads. That is no guess, and the first ones of a connection are
    /// no failures: browsers wait for the answer 407 before they show a token, and ask for several targets meanwhile.
    pub(super) fn on_missing(&mut self) {
        self.asked = self.asked.saturating_add(1);
        self.failures += u32::from(self.asked > ASKED_FREE);
    }

    /// Counts a request whose token the proxy did not look at. It costs the source nothing, so that
    /// a client that comes back too early does not have to wait for longer.
    pub(super) fn on_ignored(&mut self) {
        self.failures += 1;
    }

    /// Whether a connection has failed so often that the proxy closes it.
    pub(super) fn is_over(&self, failures_max: u32) -> bool {
        self.failures >= failures_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limits::Limits,
        proxy::users::{Bound, UserLimits, UserRules, Users},
        test_start,
        token::{NamedToken, Token},
    };

    fn from(address: &str) -> Standing {
        Standing::new(SocketAddr::new(address.parse().unwrap(), 1))
    }

    fn guesses() -> Guesses {
        Guesses::new(&Limits { guesses: 3, ..Limits::default() })
    }

    #[test]
    fn who_has_shown_a_token_does_not_wait_for_guessing_neighbours() {
        let (mut guesses, now) = (guesses(), test_start());
        let mut proven = from("192.0.2.1");
        proven.user = Some(User::test());
        for _ in 0..100 {
            proven.on_wrong(now, &mut guesses);
        }
        assert_eq!(proven.wait(now, &guesses), None);
        assert!(proven.is_over(100), "but for its own guesses it is closed");
        assert!(from("192.0.2.1").wait(now, &guesses).is_some());
    }

    #[test]
    fn a_user_with_a_new_token_has_no_second_place() {
        let users = Users::new(UserRules {
            default: UserLimits { connections: Bound::At(1), ..UserLimits::default() },
            ..UserRules::default()
        });
        let mut standing = from("192.0.2.1");
        for token in ["0123456789abcdef", "fedcba9876543210"] {
            let named = NamedToken::new("alice", Token::parse(token).unwrap()).unwrap();
            let access = Access::Tokens(vec![named]);
            standing.revoke(&access);
            let shown = format!("Bearer {token}");
            let claim = access.permits((test_start(), None), Ok((&*shown).into())).unwrap();
            standing.be(User::new(claim, &users)).unwrap();
        }
    }

    #[test]
    fn requests_without_a_token_are_no_guesses_and_the_first_ones_no_failures() {
        let mut asking = from("192.0.2.1");
        for _ in 0..ASKED_FREE {
            asking.on_missing();
        }
        assert!(!asking.is_over(1));
        asking.on_missing();
        assert!(asking.is_over(1) && !asking.is_over(2));
        asking.on_ignored();
        assert!(asking.is_over(2));
    }
}
