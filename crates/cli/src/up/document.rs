//! Fetches what a proxy tells of itself.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use tandem_files::pvd::LEN_MAX;
use tandem_net::{Application, DriverOptions};
use tandem_node::{
    Client, ClientConfig,
    client::{FetchConfig, Task},
    error::ClientError,
    limits::Limits,
    node::Event,
    proxy::Token,
    tls::ServerTrust,
};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    error::{CliError, TransferError, UpError},
    through::run_until,
};

/// The type of the document (RFC 8801 §4.3).
const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/pvd+json");

/// The longest time for all of it. A proxy on the other side of the world answers within a second.
const TIME: Duration = Duration::from_secs(20);

/// Fetches the document at this path, with a token if one is known: a proxy that is a web site to strangers shows it
/// only to users. `None`: the server has none, or shows none. One that is longer than allowed is cut after the first
/// byte that is too much.
pub(super) async fn fetch(
    (host, port): (&str, u16),
    (path, token): (&str, Option<&Token>),
    proxy: &ServerTrust,
    limits: Limits,
) -> Result<Option<Vec<u8>>, CliError> {
    let mut fields = HeaderMap::from_iter([(header::ACCEPT, MEDIA_TYPE)]);
    let value = token.map(|token| HeaderValue::try_from(format!("Bearer {}", token.reveal())));
    if let Some(Ok(mut value)) = value {
        value.set_sensitive(true);
        fields.insert(header::AUTHORIZATION, value);
    }
    let fetch = FetchConfig {
        fields,
        ech: Some(proxy.ech.clone()),
        ..FetchConfig::new(host.to_owned(), port, path.to_owned(), proxy.tls.clone())
    };
    let task = Task::Fetch(Box::new(fetch));
    let node = Client::new(ClientConfig { hops: Vec::new(), task, limits, seed: None });
    let node = node.map_err(TransferError::from)?;
    let (done, is_done) = oneshot::channel();
    let mut fetching = Fetching { body: Vec::new(), end: None, done: Some(done) };
    let run = run_until(node, &mut fetching, DriverOptions::default(), is_done);
    let silent = || ClientError::NoAnswer { peer: format!("{host}:{port}"), timeout: TIME };
    let is_interrupted = match timeout(TIME, run).await {
        Ok(run) => run?,
        Err(_) => return Err(TransferError::Client { error: silent() }.into()),
    };
    let Fetching { body, end, .. } = fetching;
    match end {
        _ if body.len() > LEN_MAX => Ok(Some(body)),
        _ if is_interrupted => Err(ClientError::Interrupted),
        Some(Ok(())) => Ok(Some(body)),
        // RFC 9110: what does not exist, or is not served so. Proxies of others answer so to all but CONNECT.
        Some(Err(ClientError::Status { status: 400..=499 | 501, .. })) => Ok(None),
        Some(Err(ClientError::Redirected { .. })) => {
            return Err(UpError::Redirected { proxy: format!("{host}:{port}") }.into());
        }
        Some(Err(error)) => Err(error),
        None => Err(silent()),
    }
    .map_err(|error| TransferError::Client { error }.into())
}

/// The document as far as it has come.
struct Fetching {
    body: Vec<u8>,
    end: Option<Result<(), ClientError>>,
    /// Ends the client early.
    done: Option<oneshot::Sender<()>>,
}

impl Application<Client> for Fetching {
    fn event(&mut self, event: Event) {
        if let Event::Closed(result) = event {
            self.end.get_or_insert(result);
        }
    }

    fn body(&mut self, _: u64, data: Bytes) -> io::Result<()> {
        let room = (LEN_MAX + 1).saturating_sub(self.body.len());
        self.body.extend_from_slice(data.get(..room).unwrap_or(&data));
        if self.body.len() > LEN_MAX
            && let Some(done) = self.done.take()
        {
            done.send(()).unwrap_or_default(); // an error: it has ended already
        }
        Ok(())
    }
}
