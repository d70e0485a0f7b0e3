//! The client's side of a download or an upload: it handles the connection to the origin.

use std::time::{Duration, Instant};

use tandem_wire::Code;

use super::{
    Client, Life, Work,
    fetch::{Failure, Progress},
    hop::Hop,
};
use crate::{
    h3,
    node::{Event, FetchReport, Output},
};

impl Client {
    pub(super) fn on_origin_event(&mut self, now: Instant, event: h3::Event) {
        let Some((fetch, origin)) = self.fetch() else { return };
        match event {
            h3::Event::Settings => fetch.on_settings(origin),
            h3::Event::Response(stream, head) => match fetch.on_response(origin, stream, &head) {
                Ok(None) => {}
                Ok(Some(started)) => self.outputs.push_back(Output::Event(started)),
                Err(failure) => self.on_fetch_failure(now, failure),
            },
            h3::Event::Writable(stream) => fetch.on_writable(origin, stream),
            h3::Event::Failed(stream, code) if !fetch.on_relay_end(stream) => {
                let error = fetch.reset(code);
                self.end(now, Err(error));
            }
            h3::Event::GoAway => tracing::debug!("the origin is going away"),
            // `poll_fetch` reads the body of an answer.
            h3::Event::Failed(..) | h3::Event::Body(_) | h3::Event::Request(..) => {}
        }
    }

    /// The next piece of a body, or the end of the transfer.
    pub(super) fn poll_fetch(&mut self, now: Instant) -> Option<Output> {
        if self.life != Life::Running {
            return None;
        }
        // What is known of a response comes before its body.
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let (fetch, origin) = self.fetch()?;
        match fetch.poll(origin)? {
            Ok(Progress::Piece { offset, data }) => Some(Output::BodyChunk { offset, data }),
            Ok(Progress::Complete) => {
                let report = self.report(now);
                self.end(now, Ok(()));
                report.map(|report| Output::Event(Event::Fetched(report)))
            }
            Err(failure) => {
                self.on_fetch_failure(now, failure);
                None
            }
        }
    }

    fn on_fetch_failure(&mut self, now: Instant, failure: Failure) {
        match failure {
            Failure::Protocol(error) => self.protocol_error(now, self.chain.hops.len(), &error),
            Failure::Malformed(error) => {
                // RFC 9114 §4.1.2: "Malformed requests or responses that are detected MUST be
                // treated as a stream error of type H3_MESSAGE_ERROR." The connection has no other
                // use, so it is closed as a whole.
                if let Some(origin) = &mut self.chain.origin {
                    origin.close(now, Code::H3_MESSAGE_ERROR, &error.to_string());
                }
                self.end(now, Err(error));
            }
            Failure::Client(error) => self.end(now, Err(error)),
        }
    }

    fn report(&mut self, now: Instant) -> Option<FetchReport> {
        let connections = self.chain.connections().collect();
        let overhead = self.chain.overhead().unwrap_or_default();
        let agreements = self.chain.hops.iter().filter_map(|hop| hop.tunnel.agreement()).collect();
        let (began, feedback) = (self.began?, self.stats().feedback);
        let Work::Fetch(fetch) = &self.work else { return None };
        let origin = self.chain.origin.as_mut()?;
        let started = origin.started()?;
        let adapts = self.chain.hops.iter().any(Hop::adapts);
        let choice = fetch.choice().filter(|_| adapts);
        Some(FetchReport {
            choice,
            status: fetch.status?.as_u16(),
            bytes: fetch.bytes,
            setup: started.saturating_duration_since(began),
            handshake: origin.handshake().unwrap_or(Duration::ZERO),
            completion: now - started,
            smoothed_rtt: origin.stats().smoothed_rtt,
            connections,
            overhead,
            agreements,
            feedback,
        })
    }
}
