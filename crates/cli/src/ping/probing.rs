//! Sends requests, one after the other, and notes when they are answered.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tandem_net::{Application, clock};
use tandem_node::{
    Client,
    client::{FlowEvent, FlowId},
    error::{ClientError, FlowError},
    node::Event,
};
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};
use tracing::warn;

use super::{
    Plan,
    summary::{Summary, ms},
};
use crate::{config::Target, error::CliError, hops::Retries, text};

/// The time until a request is tried again that could not leave.
const AGAIN: Duration = Duration::from_millis(50);

/// The program that asks, and what it knows so far.
pub(super) struct Probing {
    plan: Plan,
    summary: Summary,
    /// How long each hop took to come up.
    setups: Vec<Duration>,
    /// Whether the last hop has come up since the node was last seen.
    has_come_up: bool,
    /// The request that waits for its answer, and when it left.
    waiting: Option<(FlowId, Instant)>,
    began: Instant,
    /// When the next request is due. `None`: the tunnel has not been up.
    next: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Ends the client.
    done: Option<oneshot::Sender<()>>,
    retries: Retries,
    /// Why the client has ended, or why the first request failed.
    error: Option<ClientError>,
    /// An error of standard output.
    unprinted: Option<CliError>,
}

impl Probing {
    pub(super) fn new(plan: Plan, hops: usize, done: oneshot::Sender<()>) -> Self {
        Self {
            summary: Summary::new(plan.target.as_ref().map(ToString::to_string)),
            plan,
            setups: vec![Duration::ZERO; hops],
            has_come_up: false,
            waiting: None,
            began: clock::now(),
            next: None,
            alarm: Box::pin(sleep(Duration::ZERO)),
            done: Some(done),
            retries: Retries::default(),
            error: None,
            unprinted: None,
        }
    }

    /// What was found out, and why it is less than was asked for.
    pub(super) fn finish(self) -> Result<(Summary, Result<(), ClientError>), CliError> {
        if let Some(error) = self.unprinted {
            return Err(error);
        }
        let silent = || {
            let peer = self.summary.peer().to_owned();
            ClientError::NoAnswer { peer, timeout: self.plan.wait }
        };
        let is_silent = self.error.is_none() && self.summary.answered == 0;
        let error = if is_silent { Some(silent()) } else { self.error };
        Ok((self.summary, error.map_or(Ok(()), Err)))
    }

    /// Prints a line, unless only the result is wanted.
    fn say(&mut self, line: &str) {
        if self.plan.is_shown
            && let Err(error) = text::print(line)
        {
            self.unprinted.get_or_insert(error);
            self.end();
        }
    }

    /// Lets the client end.
    fn end(&mut self) {
        if let Some(done) = self.done.take() {
            done.send(()).unwrap_or_default(); // an error: it has ended already
        }
    }

    /// Begins to ask, after the last hop has come up.
    fn begin(&mut self, now: Instant, node: &mut Client) {
        let is_first = self.summary.proxies.is_empty();
        self.summary.see(&node.status(0).hops, &self.setups);
        if is_first {
            for line in self.summary.setup_lines() {
                self.say(&line);
            }
        }
        self.next.get_or_insert(now);
    }

    fn take_answers(&mut self, now: Instant, node: &mut Client) {
        while let Some((id, event)) = node.poll_flow_event() {
            let Some((_, sent)) = self.waiting.take_if(|(waiting, _)| *waiting == id) else {
                continue; // it was given up
            };
            match event {
                FlowEvent::Ended(error) => self.on_failed(error),
                _ => self.on_answered(now - sent),
            }
            self.summary.see(&node.status(0).hops, &self.setups);
        }
    }

    fn on_answered(&mut self, time: Duration) {
        self.summary.note(time);
        let number = self.summary.sent;
        let line = match &self.summary.target {
            None => format!("{number}: {} answered after {}", self.summary.peer(), ms(time)),
            Some(target) => format!("{number}: {target} accepted after {}", ms(time)),
        };
        self.say(&line);
    }

    /// Handles a request that was refused. The first one that fails before there was an answer ends the program.
    fn on_failed(&mut self, error: ClientError) {
        if self.summary.answered == 0 {
            self.error = Some(error);
            return self.end();
        }
        self.summary.failed += 1;
        self.say(&format!("{}: {error}", self.summary.sent));
    }

    /// Sends the next request, or ends after the last one.
    fn send(&mut self, now: Instant, node: &mut Client) {
        if self.summary.sent >= self.plan.count {
            return self.end();
        }
        let id = FlowId(u64::from(self.summary.sent));
        let target = self.plan.target.as_ref().map(Target::to_flow);
        match node.probe(now, id, target) {
            Ok(()) => {
                self.summary.sent += 1;
                self.waiting = Some((id, now));
                self.next = Some(now + self.plan.interval);
            }
            Err(FlowError::NotOpen) => self.next = Some(now + AGAIN), // the tunnel is built again
            Err(error) => {
                warn!("{error}");
                self.end();
            }
        }
    }

    /// Gives up the request that was not answered in time.
    fn give_up(&mut self, now: Instant, id: FlowId, node: &mut Client) {
        node.close_flow(now, id);
        self.waiting = None;
        self.summary.failed += 1;
        self.say(&format!("{}: no answer within {}", self.summary.sent, ms(self.plan.wait)));
    }

    /// Does what is due. Returns whether there was something.
    fn act(&mut self, now: Instant, node: &mut Client) -> bool {
        match (self.waiting, self.due()) {
            (Some((id, _)), Some(due)) if due <= now => self.give_up(now, id, node),
            (None, Some(due)) if due <= now => self.send(now, node),
            _ => return false,
        }
        true
    }

    /// When something is due. `None`: the tunnel is not up, or the program ends.
    fn due(&self) -> Option<Instant> {
        let next = self.next.filter(|_| self.done.is_some())?;
        Some(match self.waiting {
            Some((_, sent)) => sent + self.plan.wait,
            None if self.summary.sent >= self.plan.count => self.began, // it ends at once
            None => next,
        })
    }
}

impl Application<Client> for Probing {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries.on_up(hop, &authority, setup, agreement);
                if let Some(place) = self.setups.get_mut(hop) {
                    *place = setup;
                }
                self.has_come_up |= hop + 1 == self.setups.len();
            }
            Event::HopLost { error, retry_in, .. } => {
                self.retries.on_lost(&error, retry_in);
            }
            Event::Closed(Err(error)) => {
                self.error.get_or_insert(error);
            }
            _ => {}
        }
    }

    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut Client) -> Poll<()> {
        let now = clock::now();
        self.take_answers(now, node);
        if std::mem::take(&mut self.has_come_up) {
            self.begin(now, node);
        }
        if self.act(now, node) {
            return Poll::Ready(());
        }
        if let Some(due) = self.due() {
            self.alarm.as_mut().reset(due.into());
            if self.alarm.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}
