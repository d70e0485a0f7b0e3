//! What the embedding program is told of a listener's flows that are refused or fail.

use super::Context;
use crate::{error::ClientError, node::Event, seldom::Seldom};
use std::net::SocketAddr;

/// What was told of one listener. A failure that lasts is told once, and different ones are told at most as often as
/// [`Seldom`] allows.
#[derive(Debug, Default)]
pub(super) struct Told {
    last: Option<ClientError>,
    seldom: Seldom,
}

impl Told {
    /// Tells the embedding program of a failure, if that is news and due.
    pub(super) fn tell(&mut self, listen: SocketAddr, error: &ClientError, cx: &mut Context<'_>) {
        if self.last.as_ref() != Some(error)
            && let Some(left_out) = self.seldom.due(cx.now)
        {
            self.last = Some(error.clone());
            cx.tell(Event::FlowFailed { listen, error: error.clone(), left_out });
        }
    }

    /// Notes that a flow works, so that the next failure is news.
    pub(super) fn on_success(&mut self) {
        self.last = None;
    }
}
