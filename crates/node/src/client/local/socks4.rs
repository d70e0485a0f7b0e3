//! SOCKS4 and its version 4a. No RFC describes them; these are the documents of their authors:
//! <https://www.openssh.com/txt/socks4.protocol> and <https://www.openssh.com/txt/socks4a.protocol>.

use std::{collections::VecDeque, net::Ipv4Addr};

use bytes::Bytes;

use super::{Fault, Refusal, Step, Target, inbox::Inbox};

/// The first byte of a request.
pub(super) const VERSION: u8 = 4;

/// The command that asks for a connection.
const CONNECT: u8 = 1;

/// The most bytes of a user's or a target's name.
const NAME_MAX: usize = 255;

const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socks4State {
    Request,
    /// The target is being connected. The program's bytes are for the target already.
    Connecting,
    /// All bytes pass unchanged.
    Passing,
    Ended,
}

/// A request.
#[derive(Debug)]
struct Socks4Request {
    command: u8,
    host: String,
    port: u16,
    /// Its length in bytes.
    len: usize,
}

/// Why there is no request.
#[derive(Debug)]
enum NoRequest {
    /// It has not arrived completely.
    Incomplete,
    Malformed(&'static str),
}

/// One connection of a program that speaks SOCKS4.
#[derive(Debug)]
pub(super) struct Socks4 {
    /// Whether programs must show a password, which SOCKS4 cannot.
    has_password: bool,
    state: Socks4State,
    /// An incomplete request, which has at most two names.
    inbox: Inbox,
    steps: VecDeque<Step>,
}

impl Socks4 {
    pub(super) fn new(has_password: bool) -> Self {
        let (state, inbox) = (Socks4State::Request, Inbox::default());
        Self { has_password, state, inbox, steps: VecDeque::new() }
    }

    pub(super) fn from_program(&mut self, bytes: Bytes) {
        self.inbox.push(bytes);
        if self.state == Socks4State::Request {
            if self.has_password {
                return self.fail(Fault::Socks4);
            }
            match self.read_request() {
                Ok(request) => self.obey(&request),
                Err(NoRequest::Incomplete) => return,
                Err(NoRequest::Malformed(words)) => self.fail(Fault::Malformed(words.into())),
            }
        }
        let rest = self.inbox.take_all();
        if !rest.is_empty() && self.state != Socks4State::Ended {
            self.steps.push_back(Step::ToTarget(rest));
        }
    }

    /// Version, command, port, address, user, and in version 4a a name.
    fn read_request(&self) -> Result<Socks4Request, NoRequest> {
        let bytes = self.inbox.bytes();
        let (&[_version, command, port_high, port_low, a, b, c, d], names) =
            bytes.split_first_chunk().ok_or(NoRequest::Incomplete)?;
        let (_user, mut rest) = split_name(names)?;
        let mut host = Ipv4Addr::new(a, b, c, d).to_string();
        // "For version 4A, if the client cannot resolve the destination host's domain name to find its IP address, it
        // should set the first three bytes of DSTIP to NULL and the last byte to a non-zero value."
        if [a, b, c] == [0; 3] && d != 0 {
            let name;
            (name, rest) = split_name(rest)?;
            let words = "the name of the target is not UTF-8";
            str::from_utf8(name).map_err(|_| NoRequest::Malformed(words))?.clone_into(&mut host);
        }
        let port = u16::from_be_bytes([port_high, port_low]);
        Ok(Socks4Request { command, host, port, len: bytes.len() - rest.len() })
    }

    fn obey(&mut self, request: &Socks4Request) {
        self.inbox.take(request.len);
        match Target::new(&request.host, request.port) {
            _ if request.command != CONNECT => {
                self.fail(Fault::Unsupported("the SOCKS4 command BIND, or an unknown one"));
            }
            Ok(target) => {
                self.state = Socks4State::Connecting;
                self.steps.push_back(Step::Connect(target));
            }
            Err(error) => self.fail(Fault::Malformed(error.to_string().into())),
        }
    }

    pub(super) fn on_granted(&mut self) {
        if self.state == Socks4State::Connecting {
            self.state = Socks4State::Passing;
            self.reply(GRANTED);
            self.steps.push_back(Step::Splice);
        }
    }

    pub(super) fn on_refused(&mut self, refusal: &Refusal) {
        if self.state == Socks4State::Connecting {
            self.fail(Fault::Refused(refusal.words.clone()));
        }
    }

    /// Handles the end of the program's bytes.
    pub(super) fn program_ended(&mut self) {
        // What the program has sent still reaches the target, and the answer the program.
        if self.state == Socks4State::Request {
            let words = "it ended before its SOCKS request was complete";
            self.close(Fault::Malformed(words.into()));
        }
    }

    pub(super) fn from_target(&mut self, bytes: Bytes) {
        if self.state == Socks4State::Passing {
            self.steps.push_back(Step::ToProgram(bytes));
        }
    }

    pub(super) fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// A zero, the code, and six bytes without a meaning for CONNECT.
    fn reply(&mut self, code: u8) {
        let reply = [0, code, 0, 0, 0, 0, 0, 0];
        self.steps.push_back(Step::ToProgram(Bytes::copy_from_slice(&reply)));
    }

    fn fail(&mut self, fault: Fault) {
        self.reply(REJECTED);
        self.close(fault);
    }

    fn close(&mut self, fault: Fault) {
        self.inbox.take_all();
        self.state = Socks4State::Ended;
        self.steps.push_back(Step::Close(Some(fault)));
    }
}

/// Splits a name off, which ends with a zero.
fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), NoRequest> {
    match bytes.iter().take(NAME_MAX + 1).position(|&byte| byte == 0) {
        Some(end) => {
            let (name, rest) = bytes.split_at(end);
            Ok((name, rest.get(1..).unwrap_or_default()))
        }
        None if bytes.len() > NAME_MAX => {
            Err(NoRequest::Malformed("a name in its SOCKS request is too long"))
        }
        None => Err(NoRequest::Incomplete),
    }
}
