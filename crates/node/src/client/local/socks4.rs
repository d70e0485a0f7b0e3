//! SOCKS4 and SOCKS4a. No RFC describes them; these are the documents of their authors:
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

/// What is wrong with a request.
#[derive(Debug)]
struct Malformed(&'static str);

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
                Ok(None) => return,
                Ok(Some((command, target, len))) => {
                    self.inbox.take(len);
                    self.obey(command, target);
                }
                Err(Malformed(words)) => self.fail(Fault::Malformed(words.into())),
            }
        }
        let rest = self.inbox.take_all();
        if !rest.is_empty() && self.state != Socks4State::Ended {
            self.steps.push_back(Step::ToTarget(rest));
        }
    }

    /// Version, command, port, address, user, and in SOCKS4a a name. Returns the command, the host and the port, and
    /// the length of the request. `None`: it has not arrived completely.
    fn read_request(&self) -> Result<Option<(u8, (String, u16), usize)>, Malformed> {
        let bytes = self.inbox.bytes();
        let Some((&[_version, command, port_high, port_low, a, b, c, d], names)) =
            bytes.split_first_chunk()
        else {
            return Ok(None);
        };
        let Some((_user, rest)) = split_name(names)? else { return Ok(None) };
        let port = u16::from_be_bytes([port_high, port_low]);
        // "For version 4A, if the client cannot resolve the destination host's domain name to find its IP address, it
        // should set the first three bytes of DSTIP to NULL and the last byte to a non-zero value."
        let is_named = [a, b, c] == [0; 3] && d != 0;
        let (host, rest) = if is_named {
            let Some((name, rest)) = split_name(rest)? else { return Ok(None) };
            let name =
                str::from_utf8(name).map_err(|_| Malformed("the target's name is no UTF-8"))?;
            (name.to_owned(), rest)
        } else {
            (Ipv4Addr::new(a, b, c, d).to_string(), rest)
        };
        Ok(Some((command, (host, port), bytes.len() - rest.len())))
    }

    fn obey(&mut self, command: u8, (host, port): (String, u16)) {
        match Target::new(&host, port) {
            _ if command != CONNECT => {
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

/// Splits a name off, which ends with a zero. `None`: it has not arrived completely.
fn split_name(bytes: &[u8]) -> Result<Option<(&[u8], &[u8])>, Malformed> {
    let end = bytes.iter().take(NAME_MAX + 1).position(|&byte| byte == 0);
    match end {
        Some(end) => {
            let (name, rest) = bytes.split_at(end);
            Ok(Some((name, rest.get(1..).unwrap_or_default())))
        }
        None if bytes.len() > NAME_MAX => Err(Malformed("a name in its SOCKS request is too long")),
        None => Ok(None),
    }
}
