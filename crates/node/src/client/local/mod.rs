//! The protocols that local programs speak on the client's proxy port: SOCKS5 (RFC 1928), SOCKS4, and HTTP/1.1 as to a
//! proxy (RFC 9112). They are told apart by the first byte.
//!
//! [`Local`] is one connection of a program, as a state machine without sockets. It is fed with
//! what arrives from the program and from the target, and says in [`Step`]s what to do. The rules
//! for the code around it:
//!
//! - After each call that feeds it, poll it until it returns `None`.
//! - At [`Step::Connect`], open a connection to the target through the tunnel. Bytes for the target
//!   ([`Step::ToTarget`]) may follow at once and should travel together with the request. When the
//!   proxy grants the connection, call [`Local::on_granted`] before the first
//!   [`Local::from_target`]; when it is refused, call [`Local::on_refused`]. No answer is sent to
//!   the program before, because a program that has got a success cannot be told the cause of
//!   a failure any more.
//! - At [`Step::Disconnect`], close the connection to the target and feed nothing more of it.
//! - After [`Step::Splice`], all bytes pass unchanged in both directions, so that this object is not
//!   needed any longer. An end of the program's bytes that came before must then be passed on. What
//!   is fed to the object all the same passes through it unchanged.
//! - Read from the program only while [`Local::wants_program`] says so. That bounds the memory of a
//!   program that sends many requests at once.
//! - After [`Step::Close`], send what was said before, then close. Go on to read (and to ignore)
//!   bytes of the program for a moment, because a socket that is closed with unread bytes loses the
//!   answer. After [`Step::Abort`], reset the program's connection: its message is incomplete.

mod access;
mod address;
mod http1;
mod inbox;
#[cfg(any(test, fuzzing))]
mod model;
mod refusal;
mod socks4;
mod socks5;
mod target;
#[cfg(test)]
mod tests;
mod udp;

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;

#[cfg(fuzzing)]
pub use self::model::run as run_model;
pub use self::{
    access::{Password, PasswordError},
    address::{Address, Host},
    refusal::{Refusal, SocksReply},
    target::Target,
    udp::{DatagramError, decode_datagram, encode_datagram_header},
};
use self::{http1::Http1, socks4::Socks4, socks5::Socks5};
use tandem_wire::StrangerText;

use crate::limits::LocalProxyLimits;

/// What is to be done for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send these bytes to the program.
    ToProgram(Bytes),
    /// Send these bytes to the target of the last [`Step::Connect`].
    ToTarget(Bytes),
    /// Open a connection to this target. There is no other one.
    Connect(Target),
    /// Close the connection to the target. The next request opens another one.
    Disconnect,
    /// Open a UDP socket for the program's datagrams, and call [`Local::on_associated`] or
    /// [`Local::on_refused`]. It lives until [`Step::Close`].
    Associate {
        /// The address from which the program will send, as far as the program knows it. The
        /// unspecified address and port 0 stand for what it does not know.
        from: SocketAddr,
    },
    /// From now on all bytes pass unchanged in both directions.
    Splice,
    /// Close the connection of the program, and the one to the target if there is one. This is the
    /// last step.
    Close(Option<Fault>),
    /// Reset the connection of the program, and close the one to the target if there is one. This is
    /// the last step.
    Abort(Fault),
}

/// The reason why a program's connection is closed, for the log and the counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The program speaks SOCKS4, which has no password, at a port that asks for one.
    #[error(
        "a program speaks SOCKS4, but this port asks for a password; set the program to SOCKS5 or HTTP, for example \
         with ALL_PROXY=socks5h://USER:PASSWORD@ADDRESS"
    )]
    Socks4,
    /// The program broke its protocol.
    #[error("a program sent what this port does not accept: {0}")]
    Malformed(StrangerText),
    /// The program asked for something that is not supported.
    #[error("a program asked for what this port does not support: {0}")]
    Unsupported(&'static str),
    /// The program exceeded a limit.
    #[error("a program sent more than this port accepts: {0}")]
    TooLarge(&'static str),
    /// The program did not show the right user and password.
    #[error("a program did not show the user and the password of this port")]
    Unauthorized,
    /// The target cannot be reached.
    #[error("{0}")]
    Refused(StrangerText),
    /// The target broke HTTP, or ended its connection too early.
    #[error("the answer of the target was not passed on: {0}")]
    Target(&'static str),
}

#[derive(Debug)]
enum Protocol {
    /// Nothing has arrived yet.
    Unknown(Option<Arc<Password>>),
    Socks5(Socks5),
    Socks4(Socks4),
    Http1(Box<Http1>),
    /// The program has said nothing. It gets these last steps.
    Ended(Vec<Step>),
}

/// One connection of a local program.
#[derive(Debug)]
pub struct Local {
    protocol: Protocol,
    limits: LocalProxyLimits,
}

impl Local {
    /// Begins with a program that has connected. With a password, the program must show it.
    pub fn new(password: Option<Arc<Password>>, limits: LocalProxyLimits) -> Self {
        Self { protocol: Protocol::Unknown(password), limits }
    }

    /// Handles bytes of the program.
    pub fn from_program(&mut self, bytes: Bytes) {
        if let Protocol::Unknown(password) = &mut self.protocol {
            let Some(&first) = bytes.first() else { return }; // nothing has come
            self.protocol = match first {
                socks5::VERSION => Protocol::Socks5(Socks5::new(password.take())),
                socks4::VERSION => Protocol::Socks4(Socks4::new(password.is_some())),
                _ => Protocol::Http1(Box::new(Http1::new(password.take(), self.limits))),
            };
        }
        match &mut self.protocol {
            Protocol::Socks5(socks5) => socks5.from_program(bytes),
            Protocol::Socks4(socks4) => socks4.from_program(bytes),
            Protocol::Http1(http1) => http1.from_program(bytes),
            Protocol::Unknown(_) | Protocol::Ended(_) => {}
        }
    }

    /// Handles the end of the program's bytes.
    pub fn program_ended(&mut self) {
        match &mut self.protocol {
            Protocol::Unknown(_) => self.protocol = Protocol::Ended(vec![Step::Close(None)]),
            Protocol::Socks5(socks5) => socks5.program_ended(),
            Protocol::Socks4(socks4) => socks4.program_ended(),
            Protocol::Http1(http1) => http1.program_ended(),
            Protocol::Ended(_) => {}
        }
    }

    /// Whether bytes of the program can be used at present.
    pub fn wants_program(&self) -> bool {
        match &self.protocol {
            Protocol::Unknown(_)
            | Protocol::Socks5(_)
            | Protocol::Socks4(_)
            | Protocol::Ended(_) => true,
            Protocol::Http1(http1) => http1.wants_program(),
        }
    }

    /// The tunnel's proxy has opened the connection of the last [`Step::Connect`].
    pub fn on_granted(&mut self) {
        match &mut self.protocol {
            Protocol::Socks5(socks5) => socks5.on_granted(),
            Protocol::Socks4(socks4) => socks4.on_granted(),
            Protocol::Http1(http1) => http1.on_granted(),
            Protocol::Unknown(_) | Protocol::Ended(_) => {}
        }
    }

    /// The socket of the last [`Step::Associate`] is open at this address.
    pub fn on_associated(&mut self, relay: SocketAddr) {
        if let Protocol::Socks5(socks5) = &mut self.protocol {
            socks5.on_associated(relay);
        }
    }

    /// The connection of the last [`Step::Connect`] or the socket of the last [`Step::Associate`]
    /// cannot be opened.
    pub fn on_refused(&mut self, refusal: &Refusal) {
        match &mut self.protocol {
            Protocol::Socks5(socks5) => socks5.on_refused(refusal),
            Protocol::Socks4(socks4) => socks4.on_refused(refusal),
            Protocol::Http1(http1) => http1.on_refused(refusal),
            Protocol::Unknown(_) | Protocol::Ended(_) => {}
        }
    }

    /// Handles bytes of the target.
    pub fn from_target(&mut self, bytes: Bytes) {
        match &mut self.protocol {
            Protocol::Socks5(socks5) => socks5.from_target(bytes),
            Protocol::Socks4(socks4) => socks4.from_target(bytes),
            Protocol::Http1(http1) => http1.from_target(bytes),
            Protocol::Unknown(_) | Protocol::Ended(_) => {}
        }
    }

    /// Handles the end of the target's bytes, which is clean unless the connection broke. After
    /// [`Step::Splice`] it has no effect, since the ends of the bytes then concern only the program and the target.
    pub fn target_ended(&mut self, is_clean: bool) {
        if let Protocol::Http1(http1) = &mut self.protocol {
            http1.target_ended(is_clean);
        }
    }

    /// Returns the next step. `None`: it waits for the program or the target.
    pub fn poll(&mut self) -> Option<Step> {
        match &mut self.protocol {
            Protocol::Unknown(_) => None,
            Protocol::Socks5(socks5) => socks5.poll(),
            Protocol::Socks4(socks4) => socks4.poll(),
            Protocol::Http1(http1) => http1.poll(),
            Protocol::Ended(steps) => steps.pop(),
        }
    }
}
