//! Programs and servers that use TCP connections. All of them send the same endless pattern of bytes
//! in each direction, and check it on arrival, so that no lost, repeated or changed byte goes
//! unnoticed. A server that sends bytes back sends this pattern too.

mod program;
mod server;
mod stream;
mod typist;

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

pub use self::{
    program::{TcpProgram, TcpTask},
    server::{Behaviour, TcpServer},
    typist::TcpTypist,
};

/// How an endpoint reads what comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// It reads everything at once.
    #[default]
    All,
    /// It never reads.
    Nothing,
    /// It reads at most this many bytes in each interval.
    Slowly {
        /// The bytes.
        bytes: usize,
        /// The interval.
        interval: Duration,
    },
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpReport {
    /// The time at which the endpoint asked for the connection, or got it.
    pub began: Instant,
    /// The time at which the connection was open.
    pub opened: Option<Instant>,
    /// The arrival of the first byte.
    pub first_byte: Option<Instant>,
    /// The arrival of the peer's FIN.
    pub read_end: Option<Instant>,
    /// The time at which both directions had ended, or the connection failed.
    pub ended: Option<Instant>,
    /// The bytes that the operating system took.
    pub sent: u64,
    /// The bytes that came.
    pub received: u64,
    /// Whether all bytes that came were those of the pattern.
    pub is_intact: bool,
    /// How the connection ended. A connection that the endpoint itself reset ended with
    /// `ConnectionAborted`.
    pub result: Option<Result<(), ErrorKind>>,
}

impl TcpReport {
    const fn new(began: Instant) -> Self {
        Self {
            began,
            opened: None,
            first_byte: None,
            read_end: None,
            ended: None,
            sent: 0,
            received: 0,
            is_intact: true,
            result: None,
        }
    }

    /// The time from the request for the connection to its end.
    pub fn duration(&self) -> Option<Duration> {
        Some(self.ended? - self.began)
    }
}

#[cfg(test)]
mod tests;
