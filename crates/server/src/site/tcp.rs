//! The site over HTTP/1.1, in a thread of its own, so that no packet of a node waits for it.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tandem_net::site::{SiteContent, TcpSite};
use tokio::sync::watch;

use crate::{
    error::ServeError,
    process::{SystemError, runtime, say},
};

/// The ALPN protocol ID of HTTP/1.1 (RFC 7301 §6).
const ALPN: &[u8] = b"http/1.1";

/// The site cannot be served over TCP.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen at TCP address {address}: {error}; with --http1=false the site is served over UDP only, and TCP is \
     left to others"
)]
pub struct TcpError {
    /// Where.
    address: SocketAddr,
    /// The cause.
    error: io::Error,
}

/// The site of a server over TCP, which begins and ends while the server runs.
#[derive(Debug)]
pub(crate) struct SiteOverTcp {
    address: SocketAddr,
    content: SiteContent,
    tls: watch::Sender<Arc<rustls::ServerConfig>>,
    /// Whether new connections are taken. `None`: nothing is served.
    takes: Mutex<Option<watch::Sender<bool>>>,
}

impl SiteOverTcp {
    pub(crate) fn new(
        address: SocketAddr,
        content: &SiteContent,
        tls: rustls::ServerConfig,
    ) -> Self {
        let tls = watch::Sender::new(Arc::new(for_tcp(tls)));
        Self { address, content: content.clone(), tls, takes: Mutex::default() }
    }

    /// Sets the certificate of new connections.
    pub(crate) fn set_tls(&self, tls: rustls::ServerConfig) {
        self.tls.send_replace(Arc::new(for_tcp(tls)));
    }

    /// Listens from now on.
    pub(crate) fn begin(&self) -> Result<(), ServeError> {
        let address = self.address;
        let bound = TcpSite::bind(address, &self.content);
        let site = bound.map_err(|error| TcpError { address, error })?;
        let takes = watch::Sender::new(true);
        let (tls, mut is_over) = (self.tls.subscribe(), takes.subscribe());
        let runtime = runtime()?;
        let run = move || {
            let end = async move { drop(is_over.wait_for(|takes| !takes).await) };
            if let Err(error) = runtime.block_on(site.serve(tls, end)) {
                say(format_args!("error: the site is not served over TCP: {error}"));
            }
        };
        let thread = thread::Builder::new().name("tandem-site".to_owned()).spawn(run);
        thread.map_err(SystemError::thread)?;
        *self.takes.lock().unwrap_or_else(PoisonError::into_inner) = Some(takes);
        Ok(())
    }

    /// Takes no more connections. Requests that are being answered go on for a while.
    pub(crate) fn end(&self) {
        let takes = self.takes.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(takes) = takes {
            takes.send_replace(false);
        }
    }
}

impl Drop for SiteOverTcp {
    fn drop(&mut self) {
        self.end();
    }
}

fn for_tcp(mut tls: rustls::ServerConfig) -> rustls::ServerConfig {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls
}
