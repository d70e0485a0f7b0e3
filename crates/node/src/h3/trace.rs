//! Identifiers of requests, by which the logs of a client and a server can be joined (client).
//!
//! Each request has one of its own, so that two servers that compare their logs learn nothing of what belongs together.
//! Only the client's log names all of them.

use std::collections::BTreeMap;

use http::{HeaderValue, StatusCode};
use rand::RngCore;
use tandem_wire::{RequestHead, TraceId};
use tracing::info;

use super::Session;
use crate::quic::{Generator, StreamId};

/// Gives each request an identifier, and logs what becomes of it.
#[derive(Debug)]
pub(super) struct Tracer {
    /// The server's authority.
    peer: String,
    random: Generator,
    open: BTreeMap<StreamId, TraceId>,
}

impl Tracer {
    /// The request with an identifier.
    pub(super) fn begin(&mut self, stream: StreamId, head: &RequestHead) -> RequestHead {
        let mut head = head.clone();
        let id = u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64());
        let parent = self.random.next_u64();
        let field = TraceId::new(id).map(|id| (id, HeaderValue::try_from(id.field_value(parent))));
        let Some((trace_id, Ok(field))) = field else { return head };
        head.headers.insert(TraceId::FIELD, field);
        self.open.insert(stream, trace_id);
        let kind = head.protocol.as_deref().unwrap_or(head.method.as_str());
        info!(peer = self.peer, stream = stream.0, %trace_id, kind, "request sent");
        head
    }

    pub(super) fn on_response(&self, stream: StreamId, status: StatusCode) {
        if let Some(trace_id) = self.open.get(&stream) {
            let status = status.as_u16();
            info!(peer = self.peer, stream = stream.0, %trace_id, status, "response received");
        }
    }

    pub(super) fn end(&mut self, stream: StreamId, cause: &dyn std::fmt::Display) {
        if let Some(trace_id) = self.open.remove(&stream) {
            info!(peer = self.peer, stream = stream.0, %trace_id, %cause, "request ended");
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        while let Some((&stream, _)) = self.open.first_key_value() {
            self.end(stream, &"connection ended");
        }
    }
}

impl Session {
    /// Gives each request from now on an identifier (client).
    pub(crate) fn trace_requests(&mut self, peer: String, random: Generator) {
        self.tracer = Some(Box::new(Tracer { peer, random, open: BTreeMap::new() }));
    }

    /// Logs the end of a request, if requests have identifiers.
    pub(super) fn log_end(&mut self, stream: StreamId, cause: &dyn std::fmt::Display) {
        if let Some(tracer) = &mut self.tracer {
            tracer.end(stream, cause);
        }
    }
}
