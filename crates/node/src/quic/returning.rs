//! How a server knows a client that comes again, before it does the work of a handshake.
//!
//! A server gives each connection an address token (`NEW_TOKEN`, RFC 9000 §8.1.3), which the client shows in its next
//! first packet. Anybody gets one who completes a handshake. So a token counts only once the connection that got it has
//! made a permitted request, and only once: others are taken for none.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use noq_proto::{
    ServerConfig, TokenLog, TokenReuseError, ValidationTokenConfig,
    crypto::{CryptoError, HandshakeTokenKey},
};
use rand::RngCore;

use super::{config::rng, fleet::TokenKey};

/// How long a token counts. It is bound to the address of its client, which few keep for longer.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The most tokens of one connection that count. A lost one is replaced by another, and so is one whose client has
/// changed its address.
const TOKENS_MAX: usize = 4;

/// The clients that may come again. All nodes of a process have a clone, because a client that comes again from another
/// port may reach another node.
#[derive(Clone)]
pub struct Returning {
    key: Arc<dyn HandshakeTokenKey>,
    known: Arc<Mutex<CountingTokens>>,
}

impl Returning {
    /// No client is known yet.
    pub fn new() -> Self {
        let mut secret = [0; 32];
        rng(None).fill_bytes(&mut secret);
        Self { key: Arc::new(TokenKey::new(&secret)), known: Arc::default() }
    }

    /// Lets connections with these settings get no token, and has the tokens of others checked. `fleet` is the key of
    /// all machines of a fleet, if there is one.
    pub(super) fn apply(
        &mut self,
        config: &mut ServerConfig,
        fleet: Option<Arc<dyn HandshakeTokenKey>>,
        clients_max: usize,
    ) {
        if let Some(fleet) = fleet {
            self.key = fleet;
        }
        lock(&self.known).clients_max = clients_max;
        let mut tokens = ValidationTokenConfig::default();
        tokens.lifetime(LIFETIME).log(Arc::new(self.clone())).sent(0);
        config.token_key(self.key.clone()).validation_token_config(tokens);
    }

    /// Lets the connection with these settings get a token.
    pub(super) fn give(&self, config: &mut ServerConfig) -> Given {
        let given = Given { returning: self.clone(), tokens: Arc::default() };
        let mut tokens = ValidationTokenConfig::default();
        tokens.lifetime(LIFETIME).log(Arc::new(self.clone())).sent(1);
        config.token_key(Arc::new(given.clone())).validation_token_config(tokens);
        given
    }
}

impl Default for Returning {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Returning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Returning(..)")
    }
}

impl TokenLog for Returning {
    fn check_and_insert(
        &self,
        number: u128,
        _: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        if lock(&self.known).take(number) { Ok(()) } else { Err(TokenReuseError) }
    }
}

/// The numbers of the tokens that count. Each token has a random one.
#[derive(Debug, Default)]
struct CountingTokens {
    by_number: BTreeMap<u128, u64>,
    /// The same by age. The oldest one is the first to be forgotten.
    by_age: BTreeMap<u64, u128>,
    next: u64,
    clients_max: usize,
}

impl CountingTokens {
    fn insert(&mut self, number: u128) {
        if let Some(age) = self.by_number.insert(number, self.next) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.next, number);
        self.next += 1;
        while self.by_age.len() > self.clients_max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_number.remove(&oldest);
        }
    }

    fn take(&mut self, number: u128) -> bool {
        let age = self.by_number.remove(&number);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }
}

/// The tokens that one connection has got.
#[derive(Clone)]
pub(super) struct Given {
    returning: Returning,
    tokens: Arc<Mutex<Tokens>>,
}

#[derive(Default)]
struct Tokens {
    /// The newest ones that do not count yet.
    waiting: VecDeque<u128>,
    is_proven: bool,
}

impl Given {
    /// Notes that the client has made a permitted request. Its tokens count from now on.
    pub(super) fn prove(&self) {
        let mut tokens = lock(&self.tokens);
        tokens.is_proven = true;
        let mut known = lock(&self.returning.known);
        for number in tokens.waiting.drain(..) {
            known.insert(number);
        }
    }
}

/// The engine seals a token with the key of the connection that gets it.
impl HandshakeTokenKey for Given {
    fn seal(&self, number: u128, data: &mut Vec<u8>) -> Result<(), CryptoError> {
        let mut tokens = lock(&self.tokens);
        if tokens.is_proven {
            lock(&self.returning.known).insert(number);
        } else {
            if tokens.waiting.len() >= TOKENS_MAX {
                tokens.waiting.pop_front();
            }
            tokens.waiting.push_back(number);
        }
        self.returning.key.seal(number, data)
    }

    fn open<'a>(&self, number: u128, data: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        self.returning.key.open(number, data)
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(returning: &Returning, number: u128) -> bool {
        returning.check_and_insert(number, SystemTime::UNIX_EPOCH, LIFETIME).is_ok()
    }

    fn returning(clients_max: usize) -> Returning {
        let returning = Returning::new();
        lock(&returning.known).clients_max = clients_max;
        returning
    }

    fn given(returning: &Returning) -> Given {
        Given { returning: returning.clone(), tokens: Arc::default() }
    }

    #[test]
    fn a_token_counts_once_and_only_after_a_permitted_request() {
        let returning = returning(9);
        let (stranger, user) = (given(&returning), given(&returning));
        for (number, connection) in [(1, &stranger), (2, &user)] {
            let mut token = b"192.0.2.1".to_vec();
            connection.seal(number, &mut token).unwrap();
            assert_eq!(returning.key.open(number, &mut token).unwrap(), b"192.0.2.1");
            assert!(!counts(&returning, number), "{number}");
        }
        user.prove();
        user.seal(3, &mut Vec::new()).unwrap();
        let all = |returning: &Returning| [1, 2, 3, 4].map(|number| counts(returning, number));
        assert_eq!(all(&returning.clone()), [false, true, true, false]);
        assert_eq!(all(&returning), [false; 4], "none counts twice");
        assert!(lock(&returning.known).by_age.is_empty());
    }

    #[test]
    fn the_numbers_of_tokens_are_bounded() {
        let returning = returning(3);
        let connection = given(&returning);
        for number in 0..10 {
            connection.seal(number, &mut Vec::new()).unwrap();
        }
        assert_eq!(lock(&connection.tokens).waiting.len(), TOKENS_MAX);
        connection.prove();
        let known = [6, 7, 8, 9].map(|number| counts(&returning, number));
        assert_eq!(known, [false, true, true, true], "the oldest is forgotten");
    }
}
