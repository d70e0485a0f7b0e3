//! A server of ours in a thread of its own, for the examples and their tests.

use std::{
    error::Error,
    net::SocketAddr,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use tandem_net::{Application, DriverOptions, driver};
use tandem_node::{Event, Node};
use tokio::sync::oneshot;

/// A server with its own thread.
pub(crate) struct Server<N> {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<std::io::Result<N>>,
}

impl<N: Node + Send + 'static> Server<N> {
    /// Starts the server, and returns when it listens.
    pub(crate) fn start(node: N, options: DriverOptions) -> Result<Self, Box<dyn Error>> {
        let (ready, listening) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let stopped = async { stopped.await.unwrap_or_default() };
            let mut app = Ready(ready);
            Ok(runtime.block_on(driver::run(node, &mut app, options, stopped)).node)
        });
        Ok(Self { address: listening.recv()?, stop, thread })
    }

    /// Stops the server, and returns it with its statistics.
    pub(crate) fn stop(self) -> Result<N, Box<dyn Error>> {
        self.stop.send(()).map_err(|()| "the server has ended by itself")?;
        Ok(self.thread.join().map_err(|_| "the server panicked")??)
    }
}

/// Sends the address at which a server listens to the thread that started it.
struct Ready(mpsc::Sender<SocketAddr>);

impl<N> Application<N> for Ready {
    fn event(&mut self, event: Event) {
        if let Event::Listening(address) = event {
            self.0.send(address).unwrap_or_default();
        }
    }
}
