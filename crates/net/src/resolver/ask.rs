//! One question to the name servers: who is asked, when, and which answer counts.
//!
//! A question stays open until it is answered or given up. If there is no answer for a while, another server is asked
//! beside the first, or the same one again, since a packet may have been lost; whichever answers first counts.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::{Instant, sleep_until, timeout_at},
};
use tracing::debug;

use super::{
    message::{Question, Reading, Reply},
    settings::Settings,
};
use crate::socket::any_address;

/// The wait for an answer before the next server is asked. It doubles when all have been asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often each server is asked.
const ROUNDS: usize = 3;

/// The longest datagram that is read.
const DATAGRAM_MAX: usize = 4096;

/// Why a name server gave no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it answered {0}")]
    Refused(ResponseCode),
    #[error("it cannot be reached: {0}")]
    Io(#[from] io::Error),
    #[error("its answer over TCP is about something else")]
    Foreign,
}

/// No name server has answered.
#[derive(Debug)]
pub(super) struct Unanswered;

/// Asks the name servers for the records of a name until the deadline.
pub(super) async fn ask(
    settings: &Settings,
    name: &Name,
    kind: RecordType,
    deadline: Instant,
) -> Result<Arc<Reply>, Unanswered> {
    if let Some(reply) = locked(&settings.cache).get(name, kind) {
        return Ok(reply);
    }
    let answer = ask_in_turn(settings, (name, kind), deadline);
    let reply = timeout_at(deadline, answer).await.unwrap_or(Err(Unanswered))?;
    let reply = Arc::new(reply);
    locked(&settings.cache).keep(name.clone(), kind, &reply);
    Ok(reply)
}

/// Asks one server after the other.
async fn ask_in_turn(
    settings: &Settings,
    (name, kind): (&Name, RecordType),
    deadline: Instant,
) -> Result<Reply, Unanswered> {
    let order = locked(&settings.health).order(settings.servers.rotate);
    let mut order = VecDeque::from(order);
    let (mut open, mut patience) = (FuturesUnordered::new(), PATIENCE);
    let mut turns = ROUNDS * order.len();
    while let Some(&server) = order.front()
        && Instant::now() < deadline
    {
        let mut next = deadline;
        if turns > 0 {
            turns -= 1;
            order.rotate_left(1);
            next = next.min(Instant::now() + patience);
            open.push(async move { (server, exchange(settings, server, (name, kind)).await) });
        }
        tokio::select! {
            biased;
            Some((server, result)) = open.next() => match result {
                Ok(reply) => {
                    locked(&settings.health).on_answer(server);
                    return Ok(reply);
                }
                Err(error) => {
                    let address = settings.servers.addresses.get(server);
                    debug!(%kind, ?address, %error, "a name server gave no answer");
                    // It would say the same again. The next one is asked at once.
                    order.retain(|other| *other != server);
                    turns = turns.min(ROUNDS * order.len());
                }
            },
            () = sleep_until(next) => {
                locked(&settings.health).on_silent(server);
                if turns.is_multiple_of(order.len().max(1)) {
                    patience *= 2; // all have been asked once more
                }
            }
        }
    }
    Err(Unanswered)
}

/// Asks one server, over UDP, and over TCP if the answer is too long for that.
async fn exchange(
    settings: &Settings,
    server: usize,
    (name, kind): (&Name, RecordType),
) -> Result<Reply, Failure> {
    let address = settings.servers.addresses.get(server);
    let address = *address.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
    let ask = |with_edns| async move {
        let question = Question::new(name.clone(), kind);
        let message = question.encode(with_edns);
        let message = message.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        if !settings.servers.use_tcp {
            match over_udp(address, &question, &message).await? {
                Reading::Truncated | Reading::Foreign => {}
                other => return Ok(other),
            }
        }
        over_tcp(address, &question, &message).await
    };
    let with_edns = settings.servers.edns0;
    let reading = match ask(with_edns).await? {
        // Old servers do not know EDNS (RFC 6891 §6.2.2).
        Reading::Failed(ResponseCode::FormErr | ResponseCode::NotImp) if with_edns => {
            ask(false).await?
        }
        other => other,
    };
    match reading {
        Reading::Answer(reply) => Ok(reply),
        Reading::Failed(code) => Err(Failure::Refused(code)),
        Reading::Foreign | Reading::Truncated => Err(Failure::Foreign),
    }
}

async fn over_udp(
    server: SocketAddr,
    question: &Question,
    message: &[u8],
) -> Result<Reading, Failure> {
    // Each question has a port of its own, which the kernel draws at random (RFC 5452 §9.2).
    let socket = UdpSocket::bind(any_address(server)).await?;
    socket.connect(server).await?;
    socket.send(message).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let len = socket.recv(&mut buffer).await?;
        match question.read(buffer.get(..len).unwrap_or_default()) {
            Reading::Foreign => {} // somebody else may have sent it
            reading => return Ok(reading),
        }
    }
}

async fn over_tcp(
    server: SocketAddr,
    question: &Question,
    message: &[u8],
) -> Result<Reading, Failure> {
    let mut stream = TcpStream::connect(server).await?;
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), message].concat()).await?;
    let len = stream.read_u16().await?;
    let mut answer = vec![0; len.into()];
    stream.read_exact(&mut answer).await?;
    Ok(question.read(&answer))
}

/// Locks what is never in an invalid state.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
