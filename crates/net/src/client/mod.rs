//! A client for programs that send and receive UDP payloads through a tunnel by themselves.
//!
//! The node and its driver run in a thread of their own. The handles, [`Client`] and [`UdpFlow`], use
//! bounded channels to it. They work on every runtime.

mod error;
mod flow;
mod link;
mod options;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use tandem_node::client::{FlowConfig, FlowId};
pub use tandem_node::error::ClientError as TunnelError;
use tandem_node::{
    ClientConfig,
    client::{HopConfig, Task, TunnelInfo},
    error::FlowError,
    limits::Limits,
    mode::Agreement,
};
use tokio::sync::{Mutex, Semaphore, broadcast, mpsc, oneshot, watch};

pub use self::{error::ClientError, flow::UdpFlow, options::ClientOptions};
use self::{
    flow::Shared,
    link::{EndedFlow, Link, ProgramCommand},
};
use crate::driver::DriverOptions;

/// The number of events that are kept for a subscriber. Above it, the oldest are dropped.
const EVENTS: usize = 256;

/// An event of a [`Client`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// The tunnel through a proxy is established, for the first time or again.
    TunnelUp {
        /// The number of the proxy in the chain, counted from 0.
        hop: usize,
        /// Its host, and its port unless it is 443.
        proxy: String,
        /// The time that it took.
        setup: Duration,
        /// The mode that the proxy granted, and why it is another than was asked for. `None` until a
        /// flow was granted.
        agreement: Option<Agreement>,
    },
    /// A proxy granted another mode than for the flow before, or its first flow a lesser one than was
    /// asked for. There is one event for each change.
    ModeChanged {
        /// The number of the proxy in the chain, counted from 0.
        hop: usize,
        /// Its host, and its port unless it is 443.
        proxy: String,
        /// What is in force now.
        agreement: Agreement,
    },
    /// The tunnel was lost, and the client tries again. Flows go on afterwards.
    TunnelLost {
        /// The number of the proxy in the chain, counted from 0.
        hop: usize,
        /// The cause.
        error: TunnelError,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// The proxy closed an open flow, or refused it after the tunnel was rebuilt. Its handle has the
    /// same error.
    FlowEnded {
        /// The flow.
        flow: FlowId,
        /// The cause.
        error: TunnelError,
    },
    /// A report of the proxy on a flow, in mode `tecc`.
    Report {
        /// The flow.
        flow: FlowId,
        /// The report.
        info: TunnelInfo,
    },
    /// The client has ended. This is its last event.
    Closed(Result<(), ClientError>),
}

/// A tunnel, through which the program opens flows. Clones are handles to the same client. It ends
/// when [`Self::close`] is called, or when the last handle and the last flow are dropped.
#[derive(Clone, Debug)]
pub struct Client {
    commands: mpsc::Sender<ProgramCommand>,
    next_flow: Arc<AtomicU64>,
    /// The places of flows.
    places: Arc<Semaphore>,
    limits: Arc<Limits>,
    /// Each subscriber gets a copy.
    events: Arc<broadcast::Receiver<ClientEvent>>,
    ended: watch::Receiver<EndedFlow>,
}

impl Client {
    /// Opens a tunnel to a proxy, and returns when it is up. The proxy checks the token for the first
    /// flow.
    ///
    /// # Errors
    ///
    /// A setting cannot be used, or the tunnel is not established within
    /// [`Limits::retry`] (by default: with the first attempt).
    pub async fn connect(options: ClientOptions) -> Result<Self, ClientError> {
        let hops = vec![options.hop()?];
        let ClientOptions { requires_mode, limits, driver, .. } = options;
        Self::start(hops, requires_mode, limits, driver).await
    }

    /// As [`Self::connect`], but through a chain of proxies, the nearest first, each with settings of
    /// its own. [`HopConfig::new`] has defaults for tunnels.
    ///
    /// # Errors
    ///
    /// See [`Self::connect`].
    pub async fn connect_through(
        hops: Vec<HopConfig>,
        limits: Limits,
        driver: DriverOptions,
    ) -> Result<Self, ClientError> {
        Self::start(hops, false, limits, driver).await
    }

    async fn start(
        hops: Vec<HopConfig>,
        requires_mode: bool,
        limits: Limits,
        driver: DriverOptions,
    ) -> Result<Self, ClientError> {
        let last_hop = hops.len().saturating_sub(1);
        let task = Task::Forward(Vec::new());
        let config = ClientConfig { hops, task, limits: limits.clone(), seed: None };
        let mut node = tandem_node::Client::new(config)?;
        if requires_mode {
            node.require_mode();
        }
        // Each flow holds a place for the command that closes it.
        let places = limits.local_flows;
        let (commands, receiver) = mpsc::channel(places + limits.flow_queue);
        let (event_sender, events) = broadcast::channel(EVENTS);
        let (ended_sender, ended) = watch::channel(None);
        let (connected_sender, connected) = oneshot::channel();
        let link = Link::new(receiver, event_sender, ended_sender, connected_sender, last_hop);
        link.start(node, driver).map_err(|error| ClientError::Thread((&error).into()))?;
        let client = Self {
            commands,
            next_flow: Arc::default(),
            places: Arc::new(Semaphore::new(places)),
            limits: Arc::new(limits),
            events: Arc::new(events),
            ended,
        };
        connected.await.unwrap_or(Err(ClientError::Closed))?;
        Ok(client)
    }

    /// Opens a flow to a target: a host name, which the proxy resolves, or an address without
    /// brackets. It returns when the proxy has granted the flow. Dropping this future gives the flow
    /// up.
    ///
    /// # Errors
    ///
    /// The proxy refused the flow, for example because of a wrong token or a target that it does not
    /// allow; or the client has its largest number of flows, or has ended.
    pub async fn open_udp(
        &self,
        host: impl Into<String>,
        port: u16,
    ) -> Result<UdpFlow, ClientError> {
        self.open(FlowConfig::new(host, port)).await
    }

    /// As [`Self::open_udp`], with all settings of the flow.
    ///
    /// # Errors
    ///
    /// See [`Self::open_udp`].
    pub async fn open(&self, config: FlowConfig) -> Result<UdpFlow, ClientError> {
        let most = self.limits.local_flows;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| FlowError::TooMany { most })?;
        let id = FlowId(self.next_flow.fetch_add(1, Ordering::Relaxed));
        let close = self.commands.clone().reserve_owned().await.map_err(|_| self.end())?;
        let (inbox_sender, inbox) = mpsc::channel(self.limits.flow_queue.max(1));
        let (opened, answer) = oneshot::channel();
        let mut flow = UdpFlow {
            id,
            agreement: None,
            commands: self.commands.clone(),
            inbox: Mutex::new(inbox),
            shared: Arc::new(Shared::default()),
            close: Some(close),
            _place: place,
        };
        let shared = Arc::clone(&flow.shared);
        let command = ProgramCommand::Open { id, config, inbox: inbox_sender, shared, opened };
        self.commands.send(command).await.map_err(|_| self.end())?;
        flow.agreement = answer.await.map_err(|_| self.end())??;
        Ok(flow)
    }

    /// Subscribes to the client's events from now on.
    pub fn events(&self) -> ClientEvents {
        ClientEvents(self.events.resubscribe())
    }

    /// Closes the client and all its flows, and waits until it has ended. What was sent before has
    /// half a second to arrive ([`Limits::last_words`]).
    ///
    /// # Errors
    ///
    /// The client had ended with this error before.
    pub async fn close(self) -> Result<(), ClientError> {
        let Self { commands, mut ended, .. } = self;
        drop(commands.send(ProgramCommand::Shutdown).await); // an error: it has ended already
        let result = ended.wait_for(Option::is_some).await;
        result.ok().and_then(|result| result.clone()).unwrap_or(Err(ClientError::Closed))
    }

    /// The reason for which the client has ended.
    fn end(&self) -> ClientError {
        let ended = self.ended.borrow().clone();
        ended.and_then(Result::err).unwrap_or(ClientError::Closed)
    }
}

/// The events of a client from the time of the subscription on.
#[derive(Debug)]
pub struct ClientEvents(broadcast::Receiver<ClientEvent>);

impl ClientEvents {
    /// Waits for the next event. It returns `None` after the last one. A slow subscriber misses the
    /// oldest events. It is safe to cancel this future.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
