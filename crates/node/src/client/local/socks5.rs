//! SOCKS5 (RFC 1928), with user and password (RFC 1929).

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Fault, Password, Refusal, SocksReply, Step,
    address::{Address, AddressError},
    inbox::Inbox,
};

/// The first byte of each message but those of RFC 1929.
pub(super) const VERSION: u8 = 5;

/// The first byte of a message of RFC 1929.
const PASSWORD_VERSION: u8 = 1;

/// The methods of authentication (RFC 1928 §3).
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;

/// The commands (RFC 1928 §4).
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;

const UNSPECIFIED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocksState {
    Methods,
    Password,
    Request,
    /// The target is being connected. The program's bytes are for the target already.
    Connecting,
    /// The socket for the program's datagrams is being opened.
    Associating,
    /// The association lives as long as the program's connection.
    Associated,
    /// All bytes pass unchanged.
    Passing,
    Ended,
}

/// One connection of a program that speaks SOCKS5.
#[derive(Debug)]
pub(super) struct Socks5 {
    password: Option<Arc<Password>>,
    state: SocksState,
    /// An incomplete message, which has at most 513 bytes.
    inbox: Inbox,
    steps: VecDeque<Step>,
}

impl Socks5 {
    pub(super) fn new(password: Option<Arc<Password>>) -> Self {
        let (state, inbox) = (SocksState::Methods, Inbox::default());
        Self { password, state, inbox, steps: VecDeque::new() }
    }

    pub(super) fn from_program(&mut self, bytes: Bytes) {
        self.inbox.push(bytes);
        loop {
            let progress = match self.state {
                SocksState::Methods => self.choose_method(),
                SocksState::Password => self.check_password(),
                SocksState::Request => self.take_request(),
                SocksState::Connecting | SocksState::Passing => {
                    let bytes = self.inbox.take_all();
                    if !bytes.is_empty() {
                        self.steps.push_back(Step::ToTarget(bytes));
                    }
                    None
                }
                SocksState::Associating | SocksState::Associated | SocksState::Ended => {
                    self.inbox.take_all(); // nothing more is expected
                    None
                }
            };
            if progress.is_none() {
                return;
            }
        }
    }

    /// RFC 1928 §3: version, number of methods, methods. `None`: they have not arrived completely.
    fn choose_method(&mut self) -> Option<()> {
        let [version, count, rest @ ..] = self.inbox.bytes() else { return None }; // more is to come
        if *version != VERSION {
            self.end(Fault::Malformed("it is not version 5 of SOCKS".into()));
            return Some(());
        }
        let count = usize::from(*count);
        let methods = rest.get(..count)?;
        let is_offered = |method| methods.contains(&method);
        // Many programs offer a password without being asked for one.
        let method = match self.password {
            None if is_offered(NO_AUTHENTICATION) => NO_AUTHENTICATION,
            _ if is_offered(USER_AND_PASSWORD) => USER_AND_PASSWORD,
            _ => NO_ACCEPTABLE_METHOD,
        };
        self.inbox.take(2 + count);
        self.reply(Bytes::copy_from_slice(&[VERSION, method]));
        match method {
            NO_AUTHENTICATION => self.state = SocksState::Request,
            USER_AND_PASSWORD => self.state = SocksState::Password,
            // RFC 1928 §3: "If the selected METHOD is X'FF', none of the methods listed by the
            // client are acceptable, and the client MUST close the connection."
            _ => self.end(Fault::Unauthorized),
        }
        Some(())
    }

    /// RFC 1929 §2: version, user, password.
    fn check_password(&mut self) -> Option<()> {
        let (&[version, user_len], rest) = self.inbox.bytes().split_first_chunk()?;
        let (user, rest) = rest.split_at_checked(user_len.into())?;
        let (&len, rest) = rest.split_first()?;
        let shown = rest.get(..usize::from(len))?;
        let is_right = self.password.as_ref().is_none_or(|password| password.is(user, shown));
        let is_permitted = version == PASSWORD_VERSION && is_right;
        self.inbox.take(3 + usize::from(user_len) + usize::from(len));
        self.reply(Bytes::copy_from_slice(&[PASSWORD_VERSION, u8::from(!is_permitted)]));
        if is_permitted {
            self.state = SocksState::Request;
        } else {
            // RFC 1929 §2: "If the server returns a `failure' (STATUS value other than X'00')
            // status, it MUST close the connection."
            self.end(Fault::Unauthorized);
        }
        Some(())
    }

    /// RFC 1928 §4: version, command, a reserved byte, address.
    fn take_request(&mut self) -> Option<()> {
        let (&[version, command, _reserved], rest) = self.inbox.bytes().split_first_chunk()?;
        if version != VERSION {
            let fault = Fault::Malformed("its SOCKS request has another version than 5".into());
            self.fail(SocksReply::GeneralFailure, fault);
            return Some(());
        }
        let (address, target, len) = match Address::split(rest) {
            Ok(None) => return None,
            Ok(Some((address, after))) => {
                let from = match address.host {
                    super::Host::Ip(ip) => SocketAddr::new(ip, address.port),
                    super::Host::Name(_) => UNSPECIFIED,
                };
                (from, address.to_target(), self.inbox.len() - after.len())
            }
            Err(AddressError::Type) => {
                let fault = Fault::Malformed("SOCKS5 has no such type of address".into());
                self.fail(SocksReply::AddressTypeNotSupported, fault);
                return Some(());
            }
            Err(AddressError::Name) => {
                let fault = Fault::Malformed("the name of the target is not UTF-8".into());
                self.fail(SocksReply::HostUnreachable, fault);
                return Some(());
            }
        };
        self.inbox.take(len);
        match (command, target) {
            (CONNECT, Ok(target)) => {
                self.state = SocksState::Connecting;
                self.steps.push_back(Step::Connect(target));
            }
            (CONNECT, Err(error)) => {
                self.fail(SocksReply::HostUnreachable, Fault::Malformed(error.to_string().into()));
            }
            (UDP_ASSOCIATE, _) => {
                self.state = SocksState::Associating;
                self.steps.push_back(Step::Associate { from: address });
            }
            (_, _) => {
                let fault = Fault::Unsupported("the SOCKS5 command BIND, or an unknown one");
                self.fail(SocksReply::CommandNotSupported, fault);
            }
        }
        Some(())
    }

    pub(super) fn on_granted(&mut self) {
        if self.state == SocksState::Connecting {
            self.state = SocksState::Passing;
            // The client cannot know the proxy's address towards the target, which programs do not use.
            self.reply(reply(SocksReply::Succeeded, UNSPECIFIED));
            self.steps.push_back(Step::Splice);
        }
    }

    pub(super) fn on_associated(&mut self, relay: SocketAddr) {
        if self.state == SocksState::Associating {
            self.state = SocksState::Associated;
            self.reply(reply(SocksReply::Succeeded, relay));
        }
    }

    pub(super) fn on_refused(&mut self, refusal: &Refusal) {
        match self.state {
            SocksState::Connecting | SocksState::Associating => {
                self.fail(refusal.socks, Fault::Refused(refusal.words.clone()));
            }
            SocksState::Methods
            | SocksState::Password
            | SocksState::Request
            | SocksState::Associated
            | SocksState::Passing
            | SocksState::Ended => {}
        }
    }

    /// Handles the end of the program's bytes.
    pub(super) fn program_ended(&mut self) {
        match self.state {
            // What the program has sent still reaches the target, and the answer the program.
            SocksState::Connecting | SocksState::Passing | SocksState::Ended => {}
            // RFC 1928 §7: "A UDP association terminates when the TCP connection that the UDP
            // ASSOCIATE request arrived on terminates."
            SocksState::Associating | SocksState::Associated => self.close(None),
            SocksState::Methods | SocksState::Password | SocksState::Request => {
                let is_silent = self.state == SocksState::Methods && self.inbox.is_empty();
                self.close((!is_silent).then(|| {
                    Fault::Malformed("it ended before its SOCKS request was complete".into())
                }));
            }
        }
    }

    pub(super) fn from_target(&mut self, bytes: Bytes) {
        if self.state == SocksState::Passing {
            self.reply(bytes);
        }
    }

    pub(super) fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    fn reply(&mut self, bytes: Bytes) {
        self.steps.push_back(Step::ToProgram(bytes));
    }

    /// RFC 1928 §6: "When a reply (REP value other than X'00') indicates a failure, the SOCKS server
    /// MUST terminate the TCP connection shortly after sending the reply."
    fn fail(&mut self, code: SocksReply, fault: Fault) {
        self.reply(reply(code, UNSPECIFIED));
        self.end(fault);
    }

    fn end(&mut self, fault: Fault) {
        self.close(Some(fault));
    }

    fn close(&mut self, fault: Option<Fault>) {
        self.inbox.take_all();
        self.state = SocksState::Ended;
        self.steps.push_back(Step::Close(fault));
    }
}

/// RFC 1928 §6: version, reply, a reserved byte, address.
fn reply(code: SocksReply, bound: SocketAddr) -> Bytes {
    // "Fields marked RESERVED (RSV) must be set to X'00'."
    let mut reply = vec![VERSION, code as u8, 0];
    Address::from(bound).write(&mut reply);
    reply.into()
}
