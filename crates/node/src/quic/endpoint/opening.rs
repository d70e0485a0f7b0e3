//! How a client opens connections, and with what settings both ends begin.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use noq_proto::{ClientConfig, TransportConfig};
use tandem_congestion::{Feedback, factory};

use tandem_wire::StrangerText;

use super::{Endpoint, Peer};
use crate::quic::{
    Connection, ConnectionId, DatagramTransport,
    connection::Hooks,
    control::Control,
    delivery::tracking,
    observed::{Layer, Observer},
    pep::Passage,
    qlog::Place,
};

impl Endpoint {
    /// Opens a connection. The error is the engine's message about a name or an address that it
    /// cannot use.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<ConnectionId, StrangerText> {
        let opening = self.client.as_ref().ok_or_else(|| StrangerText::new("not a client"))?;
        let qlog = (self.qlog.clone(), opening.place);
        let hooks = self.hooks(now, Observer::new(now, opening.layer.clone(), qlog));
        let mut config = ClientConfig::new(hooks.observer.client(opening.tls.clone()));
        config.initial_dst_cid_provider(opening.destination_cids.clone());
        config.token_store(opening.tokens.clone());
        config.transport_config(Arc::new(self.transport(&hooks)));
        let (handle, connection) = self
            .inner
            .connect(now, config, remote, server_name)
            .map_err(|error| error.to_string())?;
        hooks.observer.log(|qlog| qlog.remote(remote));
        let peer = Peer { began: now, prefix: None, unvalidated: None, given: None };
        let connection = Connection::new(connection, hooks, self.acks, self.windows);
        Ok(self.insert(handle, connection, peer))
    }

    /// Gives the connections that a client opens from now on a place in a chain.
    pub(crate) fn set_layer(&mut self, layer: Layer) {
        if let Some(opening) = &mut self.client {
            opening.layer = Some(layer);
        }
    }

    /// Says in the qlogs of the connections that a client opens from now on where they belong.
    pub(crate) const fn set_place(&mut self, place: Place) {
        if let Some(opening) = &mut self.client {
            opening.place = Some(place);
        }
    }

    /// What the parts of a new connection share.
    pub(in crate::quic) fn hooks(&self, now: Instant, observer: Observer) -> Hooks {
        let feedback = Feedback::default();
        // PEPs acknowledge the packets of the engine only.
        let may_seal = self.datagrams == DatagramTransport::Sealed && self.peps.is_none();
        let control = || Control::new(&self.controller, feedback.clone(), now);
        let control = may_seal.then(control).flatten();
        let passage = self.peps.as_ref().map(|_| Passage::new(feedback.clone()));
        Hooks { feedback, observer, passage, control, ..Hooks::default() }
    }

    /// The settings of one connection. Its controllers report the delivery of its datagrams, and
    /// take reports on a tunnel.
    pub(in crate::quic) fn transport(&mut self, hooks: &Hooks) -> TransportConfig {
        let mut transport = self.transport.clone();
        let controllers = match &hooks.control {
            Some(control) => control.for_engine(),
            None => factory(&self.controller, hooks.feedback.clone()),
        };
        self.controller.seed = self.controller.seed.wrapping_add(1);
        let (deliveries, passage) = (hooks.deliveries.clone(), hooks.passage.clone());
        let qlogs = self.qlog.is_some().then(|| hooks.observer.clone());
        transport
            .congestion_controller_factory(tracking(controllers, (deliveries, passage, qlogs)));
        transport
    }
}
