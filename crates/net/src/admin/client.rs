//! What a program asks a server's admin listener.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tandem_node::StrangerText;
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{Address, HttpStream};

/// The time for a request and its answer.
const TIME: Duration = Duration::from_secs(5);

/// The size of an answer in bytes. A server lists a bounded number of tunnels and users.
const ANSWER_MAX: usize = 8_000_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No listener is there.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection failed, or the peer does not speak HTTP.
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    /// The answer is too large, or ended early.
    #[error("the answer cannot be read: {0}")]
    Body(StrangerText),
    /// The answer is an error.
    #[error("the answer has the status {0}")]
    Status(StatusCode),
    /// The answer took too long.
    #[error("no answer within {TIME:?}")]
    Timeout,
}

/// Gets a path. Call within a runtime.
pub async fn get(address: &Address, path: &str) -> Result<Bytes, ClientError> {
    timeout(TIME, get_slowly(address, path)).await.unwrap_or(Err(ClientError::Timeout))
}

async fn get_slowly(address: &Address, path: &str) -> Result<Bytes, ClientError> {
    let stream: Box<dyn HttpStream> = match address {
        Address::Tcp(address) => {
            Box::new(TcpStream::connect(address).await.map_err(ClientError::Connect)?)
        }
        Address::Unix(path) => {
            Box::new(UnixStream::connect(path).await.map_err(ClientError::Connect)?)
        }
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new());
    let request = request.expect("paths are constants");
    let answer = async {
        let answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(ClientError::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        body.map(Collected::to_bytes).map_err(|error| ClientError::Body(error.to_string().into()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The server closes the connection after its answer.
        ended = connection => { ended?; answer.await }
    }
}
