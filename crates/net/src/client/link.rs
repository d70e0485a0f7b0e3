//! The link between a node in its own thread and the handles of the program.

use std::{
    collections::BTreeMap,
    io, mem,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
};

use bytes::Bytes;
use tandem_node::{
    Client as Node, Event,
    client::{FlowConfig, FlowEvent, FlowId},
    error::FlowError,
    mode::Agreement,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::{ClientError, ClientEvent, flow::Shared};
use crate::{
    clock,
    driver::{self, Application, DriverOptions},
};

/// The most commands that are performed before the node is polled.
const COMMANDS_PER_ROUND: usize = 64;

/// A wish of the program.
#[derive(Debug)]
pub(super) enum ProgramCommand {
    Open {
        id: FlowId,
        config: FlowConfig,
        inbox: mpsc::Sender<Bytes>,
        shared: Arc<Shared>,
        opened: Opened,
    },
    Send {
        id: FlowId,
        payload: Bytes,
        result: Option<oneshot::Sender<Result<(), FlowError>>>,
    },
    Close(FlowId),
    Shutdown,
}

/// Takes the answer to [`ProgramCommand::Open`].
type Opened = oneshot::Sender<Result<Option<Agreement>, ClientError>>;

/// How the client has ended; `None` while it runs.
pub(super) type EndedFlow = Option<Result<(), ClientError>>;

/// The thread's end of a flow.
#[derive(Debug)]
struct FlowLink {
    inbox: mpsc::Sender<Bytes>,
    shared: Arc<Shared>,
    opened: Option<Opened>,
}

/// The application of the node.
pub(super) struct Link {
    pub(super) commands: mpsc::Receiver<ProgramCommand>,
    pub(super) events: broadcast::Sender<ClientEvent>,
    pub(super) ended: watch::Sender<EndedFlow>,
    /// Tells the program that the tunnel is up for the first time, or why it is not.
    pub(super) connected: Option<oneshot::Sender<Result<(), ClientError>>>,
    pub(super) last_hop: usize,
    flows: BTreeMap<FlowId, FlowLink>,
    /// Asks the node to end.
    shutdown: Option<oneshot::Sender<()>>,
    result: Result<(), ClientError>,
}

impl Link {
    pub(super) fn new(
        commands: mpsc::Receiver<ProgramCommand>,
        events: broadcast::Sender<ClientEvent>,
        ended: watch::Sender<EndedFlow>,
        connected: oneshot::Sender<Result<(), ClientError>>,
        last_hop: usize,
    ) -> Self {
        Self {
            commands,
            events,
            ended,
            connected: Some(connected),
            last_hop,
            flows: BTreeMap::new(),
            shutdown: None,
            result: Ok(()),
        }
    }

    /// Runs the node in a thread of its own, until it ends or the program has no handle left.
    pub(super) fn start(mut self, node: Node, options: DriverOptions) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shutdown, asked) = oneshot::channel();
        self.shutdown = Some(shutdown);
        let run = move || {
            let asked = async { asked.await.unwrap_or_default() };
            let finished = runtime.block_on(driver::run(node, &mut self, options, asked));
            self.finish(finished.node);
        };
        thread::Builder::new().name("tandem-client".to_owned()).spawn(run).map(drop)
    }

    fn perform(&mut self, node: &mut Node, command: ProgramCommand) {
        let now = clock::now();
        match command {
            ProgramCommand::Open { id, config, inbox, shared, opened } => {
                match node.open_flow(id, config) {
                    Ok(()) => {
                        let link = FlowLink { inbox, shared, opened: Some(opened) };
                        self.flows.insert(id, link);
                    }
                    // The program may have stopped to wait for the answer.
                    Err(error) => drop(opened.send(Err(error.into()))),
                }
            }
            ProgramCommand::Send { id, payload, result } => {
                let sent = node.send_on_flow(now, id, &payload);
                self.note_size(node, id);
                if let Some(result) = result {
                    drop(result.send(sent)); // as above
                }
            }
            ProgramCommand::Close(id) => {
                self.flows.remove(&id);
                node.close_flow(now, id);
            }
            ProgramCommand::Shutdown => self.shut_down(),
        }
    }

    /// Lets the driver ask the node to end.
    fn shut_down(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            shutdown.send(()).unwrap_or_default(); // an error: the node has ended already
        }
    }

    fn note_size(&self, node: &mut Node, id: FlowId) {
        if let (Some(flow), Some(size)) = (self.flows.get(&id), node.max_payload(id)) {
            flow.shared.max_payload.store(size, Ordering::Relaxed);
        }
    }

    /// Gives the program what came on its flows.
    fn deliver(&mut self, node: &mut Node) {
        while let Some((id, event)) = node.poll_flow_event() {
            match event {
                FlowEvent::Opened => {
                    self.note_size(node, id);
                    let flow = self.flows.get_mut(&id);
                    if let Some(opened) = flow.and_then(|flow| flow.opened.take()) {
                        // Without a receiver, the handle is dropped, and the flow will be closed.
                        drop(opened.send(Ok(node.agreement())));
                    }
                }
                FlowEvent::Payload(payload) => {
                    let Some(flow) = self.flows.get(&id) else { continue };
                    if flow.inbox.try_send(payload).is_err() {
                        flow.shared.missed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                FlowEvent::Capsule(_) => {} // flows of UDP payloads have none
                FlowEvent::Report(info) => self.tell(ClientEvent::Report { flow: id, info }),
                FlowEvent::Ended(error) => {
                    let Some(flow) = self.flows.remove(&id) else { continue };
                    if !flow.end(&error.clone().into()) {
                        self.tell(ClientEvent::FlowEnded { flow: id, error });
                    }
                }
            }
        }
    }

    fn tell(&self, event: ClientEvent) {
        drop(self.events.send(event)); // there may be no subscriber
    }

    /// Ends everything, after the node has ended.
    fn finish(mut self, mut node: Node) {
        self.deliver(&mut node);
        let error = self.result.clone().err().unwrap_or(ClientError::Closed);
        for flow in mem::take(&mut self.flows).into_values() {
            flow.end(&error);
        }
        if let Some(connected) = self.connected.take() {
            drop(connected.send(Err(error))); // the program may have stopped to wait
        }
        self.tell(ClientEvent::Closed(self.result.clone()));
        self.ended.send_replace(Some(self.result));
    }
}

impl FlowLink {
    /// Ends the flow. Returns whether the program still waited until it was open.
    fn end(self, error: &ClientError) -> bool {
        self.shared.end.get_or_init(|| error.clone());
        let Some(opened) = self.opened else { return false };
        drop(opened.send(Err(error.clone()))); // the program may have stopped to wait
        true
    }
}

impl Application<Node> for Link {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup, agreement } => {
                self.tell(ClientEvent::TunnelUp { hop, proxy: authority, setup, agreement });
                if hop == self.last_hop
                    && let Some(connected) = self.connected.take()
                {
                    drop(connected.send(Ok(()))); // the program may have stopped to wait
                }
            }
            Event::HopLost { hop, error, retry_in } => {
                self.tell(ClientEvent::TunnelLost { hop, error, retry_in });
            }
            Event::ModeChanged { hop, authority, agreement } => {
                self.tell(ClientEvent::ModeChanged { hop, proxy: authority, agreement });
            }
            Event::Closed(result) => self.result = result.map_err(ClientError::from),
            // These are about listeners and downloads, which this client does not have.
            Event::Listening(_)
            | Event::FlowFailed { .. }
            | Event::TunnelInfo { .. }
            | Event::Chosen { .. }
            | Event::TooLarge { .. }
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }

    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut Node) -> Poll<()> {
        self.deliver(node);
        let mut change = Poll::Pending;
        for _ in 0..COMMANDS_PER_ROUND {
            // The driver polls again after the packets that make room.
            if !node.takes_payloads() {
                break;
            }
            match self.commands.poll_recv(context) {
                Poll::Ready(Some(command)) => self.perform(node, command),
                Poll::Ready(None) => {
                    self.shut_down();
                    break;
                }
                Poll::Pending => break,
            }
            change = Poll::Ready(());
        }
        change
    }
}
