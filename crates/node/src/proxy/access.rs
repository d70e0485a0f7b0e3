//! Access to a proxy (RFC 9110 §11.7).

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jsonwebtoken::jwk::AlgorithmParameters;

use super::{
    credentials::{Credentials, NoCredentials},
    jwt::JwtKeys,
    users::{Account, Counted, OpenPlace, Refusal, UserRules, Users},
};
use crate::{
    concealed::ConcealedUser,
    error::RequestError,
    password::{NamedPassword, PasswordCheck, PasswordHash},
    prefix::Prefix,
    service::HostPort,
    token::{NamedToken, Token},
};

/// The clients that may use a proxy.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that reaches the proxy. This is for loopback, or for operators who ask for it
    /// explicitly, or who let TLS demand certificates from clients.
    Anyone,
    /// The clients that send one of these tokens.
    Tokens(Vec<NamedToken>),
    /// The clients that show something of this.
    Known(Known),
}

/// What clients may show to use a proxy. One thing is enough.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Tokens.
    pub tokens: Vec<NamedToken>,
    /// The keys with which JSON Web Tokens are signed.
    pub keys: Option<Arc<JwtKeys>>,
    /// Users who show that they have a key (RFC 9729).
    pub concealed: Arc<[ConcealedUser]>,
    /// Users with a password.
    pub passwords: Arc<[NamedPassword]>,
}

/// What a request has shown of its right to use a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing, since nothing had to be shown. The client may have a certificate.
    Nothing,
    /// This token.
    Token(Token),
    /// A JSON Web Token that is signed with this key.
    Signed(Box<AlgorithmParameters>),
    /// The private key of this user.
    Key(Box<ConcealedUser>),
    /// The password of this hash.
    Password(PasswordHash),
}

/// Who sends a request, as its credentials say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) group: Option<String>,
    pub(super) shown: Shown,
    /// When the right ends.
    pub(super) until: Option<Instant>,
}

/// Who uses a flow. Logs show the name and never the token.
#[derive(Clone, Debug)]
pub(super) struct User {
    name: Arc<str>,
    shown: Shown,
    pub(super) until: Option<Instant>,
    pub(super) account: Arc<Account>,
}

impl User {
    pub(super) fn new(claim: Claim, users: &Users) -> Self {
        let Claim { name, group, shown, until } = claim;
        let account = users.account(&name, group.as_deref());
        Self { name: name.into(), shown, until, account }
    }

    /// A user who had to show nothing.
    #[cfg(test)]
    pub(super) fn test() -> Self {
        let claim = Access::Anyone
            .permits((crate::test_start(), None), Err(NoCredentials::Unread))
            .expect("it permits everybody");
        Self::new(claim, &Users::default())
    }

    /// Who the user is in an A/B test. Those who show nothing are who has their address.
    pub(super) fn in_test(&self, client: IpAddr) -> String {
        match self.shown {
            Shown::Nothing => format!("{} {:?}", self.name, Prefix::of_household(client)),
            _ => self.name.to_string(),
        }
    }

    /// Opens something of this user, unless it has as much open as it may.
    pub(super) fn place(&self, counted: Counted) -> Result<OpenPlace, RequestError> {
        self.account
            .place(counted)
            .map_err(|refusal| self.limit(refusal, self.account.max(counted)))
    }

    /// Opens a flow of this user, unless it has as many open as it may, or opens them faster than it may.
    pub(super) fn open_flow(&self, now: Instant) -> Result<OpenPlace, RequestError> {
        let place = self.place(Counted::Flows)?;
        self.account.open_flow(now).map_err(|(refusal, max)| self.limit(refusal, max))?;
        Ok(place)
    }

    /// Whether the user may reach this host, which is a name or an address, at this port.
    pub(super) fn check_target(&self, target: &HostPort) -> Result<(), RequestError> {
        if self.account.has_used_month() {
            return Err(self.limit(self.account.refuse(Refusal::Month), 0));
        }
        if self.account.may_ask(&target.host, target.port) {
            return Ok(());
        }
        self.account.refuse(Refusal::Target);
        let target = target.to_string().into();
        Err(RequestError::UserTarget { user: (*self.name).into(), target })
    }

    /// Whether the user may reach this address.
    pub(super) fn check_address(&self, address: IpAddr) -> Result<(), RequestError> {
        if self.account.may_reach(address) {
            return Ok(());
        }
        self.account.refuse(Refusal::Target);
        Err(RequestError::UserAddress { user: (*self.name).into(), address })
    }

    fn limit(&self, refusal: Refusal, max: u32) -> RequestError {
        RequestError::UserLimit { user: (*self.name).into(), refusal, max }
    }

    /// The number of the user whose turns its connections take. Those of strangers take turns of their own.
    pub(super) fn party(&self) -> Option<u64> {
        (!self.is_anyone()).then(|| self.account.number())
    }

    /// Whether this stands for all clients that have to show nothing.
    pub(super) fn is_anyone(&self) -> bool {
        *self.name == *UserRules::ANYONE
    }

    /// Whether this is the user of another connection or flow.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.account, &other.account)
    }
}

/// Why a request may not use the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The request has no token, or none in a form that the proxy reads, or several different ones.
    NoToken,
    /// The request has a token that the proxy does not know, or one of another user than it says.
    WrongToken,
    /// The request has a token of the right issuer that is no longer valid, or not yet.
    Expired,
    /// Too many wrong tokens came from the client's address, so the request's token was not
    /// checked. It will be checked after this time.
    Ignored(Duration),
}

impl Access {
    /// Finds out who sent a request with these credentials. The check takes the same time for each wrong token of the
    /// same length. `unix` is the time since 1970 at `now`, if it is known.
    pub(super) fn permits(
        &self,
        (now, unix): (Instant, Option<Duration>),
        credentials: Result<Credentials, NoCredentials>,
    ) -> Result<Claim, Denied> {
        let claim =
            |name: &str, shown| Claim { name: name.to_owned(), group: None, shown, until: None };
        let Some((tokens, keys)) = self.credentials() else {
            return Ok(claim(UserRules::ANYONE, Shown::Nothing));
        };
        let credentials = credentials.map_err(|_| Denied::NoToken)?;
        if let Some(user) = credentials.user() {
            return Ok(claim(user.name(), Shown::Key(Box::new(user.clone()))));
        }
        // Every token is compared, even after the right one.
        let found = tokens.iter().fold(None, |found, named| {
            let is_shown = named.token.is(credentials.token());
            found.or(is_shown.then_some(named))
        });
        let by_password = credentials.user_by_password().and_then(|name| self.password_of(name));
        let claim = match (found, by_password, keys) {
            (Some(named), ..) => claim(named.name(), Shown::Token(named.token.clone())),
            (None, Some(user), _) => claim(user.name(), Shown::Password(user.hash.clone())),
            (None, None, Some(keys)) => keys.check(now, unix, credentials.token())?,
            (None, None, None) => return Err(Denied::WrongToken),
        };
        // A right token with the name of somebody else is as wrong as a password would be.
        if credentials.may_be_of(&claim.name) { Ok(claim) } else { Err(Denied::WrongToken) }
    }

    /// Whether a user who was let in before may still use the proxy. A token may have another name
    /// than before.
    pub(super) fn still_permits(&self, user: &User) -> bool {
        let Some((tokens, keys)) = self.credentials() else { return true }; // it is for anyone
        match &user.shown {
            Shown::Token(old) => tokens.iter().any(|named| named.token == *old),
            Shown::Signed(key) => keys.is_some_and(|keys| keys.has(key)),
            Shown::Key(user) => self.concealed().contains(user),
            Shown::Password(hash) => self.passwords().iter().any(|user| user.hash == *hash),
            Shown::Nothing => false,
        }
    }

    /// What clients have to show, if they have to show something.
    const fn credentials(&self) -> Option<(&Vec<NamedToken>, Option<&Arc<JwtKeys>>)> {
        match self {
            Self::Anyone => None,
            Self::Tokens(tokens) => Some((tokens, None)),
            Self::Known(known) => Some((&known.tokens, known.keys.as_ref())),
        }
    }

    /// The users who show a key.
    pub(super) fn concealed(&self) -> &[ConcealedUser] {
        match self {
            Self::Anyone | Self::Tokens(_) => &[],
            Self::Known(known) => &known.concealed,
        }
    }

    fn passwords(&self) -> &[NamedPassword] {
        match self {
            Self::Anyone | Self::Tokens(_) => &[],
            Self::Known(known) => &known.passwords,
        }
    }

    /// Whether a user may show a password.
    pub(super) fn has_passwords(&self) -> bool {
        !self.passwords().is_empty()
    }

    fn password_of(&self, name: &[u8]) -> Option<&NamedPassword> {
        self.passwords().iter().find(|user| user.name().as_bytes() == name)
    }

    /// The check that tells whether these credentials are a user's password. `None`: they are none, or a token is among
    /// them. A check for a user who does not exist takes as long as another one.
    pub(super) fn password_check(&self, credentials: &Credentials) -> Option<PasswordCheck> {
        let name = credentials.name()?;
        let (tokens, _) = self.credentials()?;
        if tokens.iter().any(|named| named.token.is(credentials.token())) {
            return None;
        }
        let user = self.password_of(name);
        let compared = user.or_else(|| self.passwords().first())?;
        Some(PasswordCheck {
            hash: compared.hash.clone(),
            password: credentials.token().to_vec(),
            is_known: user.is_some(),
        })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};

    use super::*;
    use crate::{test_start, token::Token};

    fn named(name: &str, token: &str) -> NamedToken {
        NamedToken::new(name, Token::parse(token).unwrap()).unwrap()
    }

    #[test]
    fn only_a_known_token_is_let_in() {
        let access = Access::Tokens(vec![
            named("alice", "0123456789abcdef"),
            named("bob", "fedcba9876543210"),
        ]);
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        for (value, user) in [
            ("Bearer 0123456789abcdef".to_owned(), Ok("alice")),
            ("Bearer fedcba9876543210".to_owned(), Ok("bob")),
            ("Bearer 0123456789abcdeg".to_owned(), Err(Denied::WrongToken)),
            ("Bearer 0123456789abcdef0".to_owned(), Err(Denied::WrongToken)),
            ("Bearer alice".to_owned(), Err(Denied::WrongToken)),
            ("Bearer ".to_owned(), Err(Denied::WrongToken)),
            (basic("alice:0123456789abcdef"), Ok("alice")),
            (basic(":0123456789abcdef"), Ok("alice")),
            (basic("bob:0123456789abcdef"), Err(Denied::WrongToken)),
            (basic("alice:0123456789abcdeg"), Err(Denied::WrongToken)),
            (basic("alice:"), Err(Denied::WrongToken)),
        ] {
            let shown = Ok(Credentials::from(&*value));
            let permitted = access.permits((test_start(), None), shown).map(|claim| claim.name);
            assert_eq!(permitted, user.map(str::to_owned), "{value:?}");
        }
        for none in [NoCredentials::Unread, NoCredentials::Several] {
            let clock = (test_start(), None);
            assert_eq!(access.permits(clock, Err(none)), Err(Denied::NoToken));
            assert_eq!(Access::Anyone.permits(clock, Err(none)).unwrap().shown, Shown::Nothing);
        }
    }

    #[test]
    fn a_renamed_token_stays_and_a_removed_one_does_not() {
        let access = Access::Tokens(vec![named("alice", "0123456789abcdef")]);
        let anyone = User::test();
        let shown = Ok(Credentials::from("Bearer 0123456789abcdef"));
        let claim = access.permits((test_start(), None), shown).unwrap();
        let user = User::new(claim, &Users::default());
        let renamed = Access::Tokens(vec![named("alice-2", "0123456789abcdef")]);
        assert!(renamed.still_permits(&user) && !renamed.still_permits(&anyone));
        let changed = Access::Tokens(vec![named("alice", "fedcba9876543210")]);
        assert!(!changed.still_permits(&user));
        assert!(Access::Anyone.still_permits(&anyone));
    }
}
