//! A flow of UDP payloads through the tunnel, as the program holds it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use bytes::Bytes;
use tandem_node::{client::FlowId, error::FlowError, mode::Agreement};
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc, oneshot};

use super::{ClientError, link::ProgramCommand};

/// What the flow and the client's thread share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The largest payload that the flow carries.
    pub(super) max_payload: AtomicUsize,
    /// Payloads of the target that were dropped because the program did not take them.
    pub(super) missed: AtomicU64,
    /// Why the flow has ended.
    pub(super) end: OnceLock<ClientError>,
}

/// A flow of UDP payloads to one target through the tunnel. It works as a connected UDP socket does:
/// payloads keep their boundaries, and may be lost, reordered or repeated.
///
/// All methods take `&self`, so that tasks can share a flow in an [`Arc`]. When the flow is dropped,
/// the client closes its request stream, after payloads that were sent before have had half a second
/// to leave ([`Limits::last_words`](tandem_node::limits::Limits::last_words)).
///
/// The flow goes on after the tunnel was rebuilt. In the meantime it keeps the first payloads that
/// are sent ([`Limits::early_datagrams_per_flow`](tandem_node::limits::Limits)) and drops others. If
/// the proxy then refuses the flow, it ends with the proxy's reason.
#[derive(Debug)]
pub struct UdpFlow {
    pub(super) id: FlowId,
    pub(super) agreement: Option<Agreement>,
    pub(super) commands: mpsc::Sender<ProgramCommand>,
    pub(super) inbox: Mutex<mpsc::Receiver<Bytes>>,
    pub(super) shared: Arc<Shared>,
    /// The place of [`ProgramCommand::Close`] in the channel, which is therefore never too full for it.
    pub(super) close: Option<mpsc::OwnedPermit<ProgramCommand>>,
    /// The place of this flow among those that the client may have.
    pub(super) _place: OwnedSemaphorePermit,
}

impl UdpFlow {
    /// The name of the flow in [`ClientEvent`](super::ClientEvent)s.
    pub const fn id(&self) -> FlowId {
        self.id
    }

    /// What was agreed on with the last proxy when the flow was opened.
    pub const fn agreement(&self) -> Option<Agreement> {
        self.agreement
    }

    /// Sends a payload, which is copied once. See [`Self::send_bytes`].
    ///
    /// # Errors
    ///
    /// See [`Self::send_bytes`].
    pub async fn send(&self, payload: &[u8]) -> Result<(), ClientError> {
        self.send_bytes(Bytes::copy_from_slice(payload)).await
    }

    /// Sends a payload without a copy. It waits while the tunnel's queue is long, so that a program
    /// that sends as fast as it can is slowed down to the rate of the tunnel. As with UDP, `Ok` does
    /// not mean that the payload arrives: it may be dropped while the tunnel is being rebuilt, when
    /// active queue management shortens the tunnel's queue, and anywhere on the path.
    ///
    /// # Errors
    ///
    /// [`FlowError::TooLarge`] says the size that fits; the flow goes on. All other errors are the
    /// end of the flow.
    pub async fn send_bytes(&self, payload: Bytes) -> Result<(), ClientError> {
        if self.shared.end.get().is_some() {
            return Err(self.end());
        }
        let id = self.id;
        if payload.len() <= self.max_payload() {
            let command = ProgramCommand::Send { id, payload, result: None };
            return self.commands.send(command).await.map_err(|_| self.end());
        }
        // More may fit by now, which the tunnel knows.
        let (sender, answer) = oneshot::channel();
        let command = ProgramCommand::Send { id, payload, result: Some(sender) };
        self.commands.send(command).await.map_err(|_| self.end())?;
        match answer.await.map_err(|_| self.end())? {
            Err(FlowError::NotOpen) => Err(self.end()),
            Err(error @ FlowError::TooLarge { .. }) => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Waits for the next payload of the target. If the program does not take payloads for a while,
    /// the newest ones are dropped ([`Limits::flow_queue`](tandem_node::limits::Limits::flow_queue)),
    /// and [`Self::missed`] counts them. It is safe to cancel this future.
    ///
    /// # Errors
    ///
    /// The flow has ended, and all payloads that came before were taken.
    pub async fn recv(&self) -> Result<Bytes, ClientError> {
        self.inbox.lock().await.recv().await.ok_or_else(|| self.end())
    }

    /// The largest payload in bytes that the flow carried at its last payload. Larger ones may fit
    /// later, because the tunnel probes for larger packets.
    pub fn max_payload(&self) -> usize {
        self.shared.max_payload.load(Ordering::Relaxed)
    }

    /// The number of payloads of the target that were dropped because the program did not take them
    /// in time.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }

    /// Closes the flow, as dropping it does.
    pub fn close(self) {}

    fn end(&self) -> ClientError {
        self.shared.end.get().cloned().unwrap_or(ClientError::Closed)
    }
}

impl Drop for UdpFlow {
    fn drop(&mut self) {
        if let Some(close) = self.close.take() {
            close.send(ProgramCommand::Close(self.id));
        }
    }
}
