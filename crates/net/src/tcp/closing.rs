//! The end of connections.
//!
//! A connection that the node closes is written to its end in the background. Then its FIN is sent,
//! and what still arrives is dropped until the peer's FIN: if the socket were closed with unread
//! bytes, the operating system would reset the connection, and the peer could lose the last bytes
//! that were sent to it. This takes as long as the peer takes bytes, or at most two checks of
//! `CHECK_INTERVAL` without progress. At most `TCP_CLOSING_MAX` connections end in this way at a time.
//!
//! When the driver ends, connections that the node has not closed are reset, because their peers must
//! not take what they have got for everything.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    task::Poll,
    time::Duration,
};

use futures_util::future::select;
use tandem_node::tcp::{TcpId, TcpInput};
use tokio::{
    task,
    time::{sleep, timeout},
};
use tracing::debug;

use super::{
    READ_BYTES_MAX, Tcp,
    connection::{Connection, ConnectionStage},
};
use crate::stats::DriverStats;

/// The number of connections that end in the background. Above it the oldest one is reset. Each has
/// a descriptor, and as many bytes as the node wrote before it closed the connection.
pub const TCP_CLOSING_MAX: usize = 256;

/// The longest time for which the end of the driver waits for peers that take no bytes.
const LAST_BYTES: Duration = Duration::from_secs(5);

impl Tcp {
    /// Closes a connection after everything that was written.
    pub(super) fn close(&mut self, tcp: TcpId, stats: &mut DriverStats) {
        let Some(entry) = self.connections.get_mut(&tcp) else { return self.forget_answers(tcp) };
        if matches!(entry.stage, ConnectionStage::Opening { .. }) || entry.broken.is_some() {
            self.connections.remove(&tcp);
            return;
        }
        entry.stage = ConnectionStage::Closing { has_progress: true };
        entry.finish();
        if self.closing.len() >= TCP_CLOSING_MAX {
            let oldest = self.closing.remove(0);
            self.cut(oldest, stats);
        }
        self.closing.push(tcp);
        self.check_later();
        self.discard(tcp);
        self.output(tcp, |_| {});
    }

    /// Resets a connection.
    pub(super) fn reset(&mut self, tcp: TcpId) {
        match self.connections.remove(&tcp) {
            Some(entry) => entry.stream.reset_on_drop(),
            None => self.forget_answers(tcp),
        }
    }

    /// Drops what arrives at a closed connection.
    pub(super) fn discard(&mut self, tcp: TcpId) {
        let Some(entry) = self.connections.get(&tcp) else { return };
        if entry.is_at_end || entry.stream.is_stdio() {
            self.forget_if_done(tcp);
        } else {
            self.read(tcp, READ_BYTES_MAX);
        }
    }

    /// Forgets a closed connection if everything was written and its peer has closed it too.
    pub(super) fn forget_if_done(&mut self, tcp: TcpId) {
        let Some(entry) = self.connections.get(&tcp) else { return };
        let is_ended = entry.is_at_end || entry.stream.is_stdio();
        if entry.is_closing() && is_ended && !entry.has_output() {
            self.connections.remove(&tcp);
            self.closing.retain(|closing| *closing != tcp);
        }
    }

    /// Forgets a request whose answer the node no longer wants: a connection that was not accepted
    /// yet, or that has failed and is forgotten already.
    fn forget_answers(&mut self, tcp: TcpId) {
        for listener in self.listeners.values_mut() {
            listener.wanted.take_if(|wanted| *wanted == tcp);
        }
        self.answers.retain(|answer| {
            !matches!(
                answer,
                TcpInput::Opened { tcp: about, .. } | TcpInput::Failed { tcp: about, .. }
                    if *about == tcp
            )
        });
    }

    /// Finds connections that have failed while the node neither reads nor writes, and ends closed
    /// connections without progress since the last check.
    pub(super) fn check(&mut self, stats: &mut DriverStats) {
        let (mut failed, mut stuck) = (Vec::new(), Vec::new());
        let mut is_needed = false;
        for (tcp, entry) in &mut self.connections {
            let is_idle = entry.read_max.is_none() && !entry.has_output();
            match &mut entry.stage {
                ConnectionStage::Open if is_idle => {
                    is_needed = true;
                    if entry.broken.is_none() {
                        failed.extend(entry.stream.failure().map(|error| (*tcp, error)));
                    }
                }
                ConnectionStage::Closing { has_progress } => {
                    is_needed = true;
                    if !mem::take(has_progress) && !entry.stream.is_stdio() {
                        stuck.push(*tcp);
                    }
                }
                ConnectionStage::Open | ConnectionStage::Opening { .. } => {}
            }
        }
        for (tcp, error) in failed {
            self.set_broken(tcp, error, stats);
        }
        for tcp in stuck {
            self.cut(tcp, stats);
        }
        if is_needed {
            self.check_later();
        }
    }

    /// Gives up a closed connection. If its peer has not got everything, it must learn that.
    fn cut(&mut self, tcp: TcpId, stats: &mut DriverStats) {
        self.closing.retain(|closing| *closing != tcp);
        let Some(entry) = self.connections.remove(&tcp) else { return };
        if entry.has_output() {
            stats.tcp_closes_cut += 1;
            debug!(?tcp, "a closed TCP connection is reset: its peer does not take the last bytes");
            entry.stream.reset_on_drop();
        }
    }

    /// Ends all connections with the driver. Closed ones may write for a few seconds. The reader of
    /// the standard output may take as long as it wants, until the operator asks for the end.
    pub(crate) async fn finish(
        mut self,
        shutdown: Option<impl Future<Output = ()>>,
        stats: &mut DriverStats,
    ) {
        self.listeners.clear();
        self.connections.retain(|_, entry| {
            if !entry.is_closing() {
                entry.stream.reset_on_drop();
            }
            entry.is_closing() && entry.has_output()
        });
        let sockets = self.write_rest(stats, |entry| !entry.stream.is_stdio());
        drop(timeout(LAST_BYTES, sockets).await);
        if self.stdout.is_some() {
            let limit = async {
                if let Some(shutdown) = shutdown {
                    shutdown.await;
                }
                sleep(LAST_BYTES).await;
            };
            select(pin!(self.write_stdout(stats)), pin!(limit)).await;
        }
        for tcp in mem::take(&mut self.closing) {
            self.cut(tcp, stats);
        }
    }

    /// Waits until everything is written to the standard output.
    async fn write_stdout(&mut self, stats: &mut DriverStats) {
        self.write_rest(stats, |entry| entry.stream.is_stdio()).await;
        if let Some(all_written) = self.stdout.take() {
            drop(all_written.await); // the thread sends nothing and drops its end of the channel
        }
    }

    /// Writes the rest of these connections.
    async fn write_rest(&mut self, stats: &mut DriverStats, which: fn(&Connection) -> bool) {
        while self.connections.values().any(which) {
            poll_fn(|context| {
                self.poll_ready(context);
                if self.has_ready() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            self.serve(usize::MAX, stats, |_| {});
            self.connections.retain(|_, entry| entry.has_output());
            task::yield_now().await; // otherwise no time would be seen to pass
        }
    }
}
