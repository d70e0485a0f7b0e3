//! Handshakes that are begun and never continued, and packets that no server should answer.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};
use tandem_units::{ByteCount, HumanDuration};
use tokio::{net::UdpSocket, time::sleep};

use crate::{
    client::Login,
    proxy::Launch,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// A packet of a version that does not exist, as RFC 9000 §15 reserves it.
const UNKNOWN_VERSION: [u8; 7] = [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 0, 0];

/// Begin handshakes and never continue them
#[derive(Args)]
pub(crate) struct Handshakes {
    /// Number of Initial packets, each with a `ClientHello` of its own
    #[arg(long, default_value_t = 6000)]
    count: usize,
    /// Number of ports that they come from
    #[arg(long, default_value_t = 100)]
    ports: usize,
    /// Number of packets a second
    #[arg(long, default_value_t = 500)]
    rate: usize,
    /// Number of small packets of an unknown version
    #[arg(long, default_value_t = 1000)]
    small: usize,
    /// Time after the last packet before memory is read again
    #[arg(long, default_value = "40s")]
    rest: HumanDuration,
    /// Bound on the memory at any time
    #[arg(long, default_value = "100MB")]
    memory: ByteCount,
}

impl Handshakes {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("handshakes");
        let proxy = launch.start().await?;
        let target = Echo::start().await?;
        let address = proxy.login.address;
        report.usage("before", &proxy.usage()?);
        let one = sockets(address, 1).await?;
        let sent = send_initials(&proxy.login, &one, (1, self.rate)).await?;
        sleep(Duration::from_secs(5)).await;
        let answered = sent.answered + received(&one)?.answered;
        report_amplification("one forged Initial", (answered, sent.sent), &mut report);

        let small = sockets(address, 1).await?;
        let bytes = self.send_small(&small).await?;
        let small = received(&small)?;
        report.check_none("answers to small packets of an unknown version", small.answers);
        report.note("bytes of those answers per byte", float(small.answered) / float(bytes), "");

        let many = sockets(address, self.ports).await?;
        let sent = send_initials(&proxy.login, &many, (self.count, self.rate)).await?;
        report.usage("after the last Initial", &proxy.usage()?);
        let pace = (1, Duration::from_secs(10));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        sleep(self.rest.0).await;
        let late = received(&many)?;
        let answered = sent.answered + late.answered;
        report_amplification("all Initials", (answered, sent.sent), &mut report);
        report.note("answers with Retry", float(sent.retries + late.retries), "");
        let after = proxy.usage()?;
        report.usage("after a rest", &after);
        let bound = Bound::megabytes(self.memory);
        report.check("peak of memory", after.peak_mb(), "MB", bound);
        proxy.end().await?;
        Ok(report)
    }

    /// Sends small packets and returns the number of their bytes.
    async fn send_small(&self, sockets: &[UdpSocket]) -> Result<usize> {
        let mut sent = 0;
        for (index, socket) in sockets.iter().cycle().take(self.small).enumerate() {
            sent += socket.send(&UNKNOWN_VERSION).await?;
            if index % 50 == 49 {
                sleep(Duration::from_millis(20)).await;
            }
        }
        sleep(Duration::from_secs(1)).await;
        Ok(sent)
    }
}

/// What was sent and what came back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchanged {
    /// The bytes that were sent.
    sent: usize,
    /// The number of packets that came back.
    answers: usize,
    /// The number of Retry packets among them.
    pub(crate) retries: usize,
    /// The bytes that came back.
    answered: usize,
}

impl Exchanged {
    const fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.answers += other.answers;
        self.retries += other.retries;
        self.answered += other.answered;
    }
}

/// Sends a number of Initial packets at a rate, and reads what comes back meanwhile.
pub(crate) async fn send_initials(
    login: &Login,
    sockets: &[UdpSocket],
    (count, rate): (usize, usize),
) -> Result<Exchanged> {
    let config = login.config(None);
    let mut exchanged = Exchanged::default();
    for (index, socket) in sockets.iter().cycle().take(count).enumerate() {
        let initial = initial(&config, login.address)?;
        exchanged.sent += socket.send(&initial).await?;
        if index % 50 == 49 {
            sleep(Duration::from_secs(50) / u32::try_from(rate.max(1))?).await;
            exchanged.add(received(sockets)?);
        }
    }
    Ok(exchanged)
}

/// Opens sockets that send to the proxy.
pub(crate) async fn sockets(address: SocketAddr, count: usize) -> Result<Vec<UdpSocket>> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = UdpSocket::bind("127.0.0.1:0").await.context("no socket for an Initial")?;
        socket.connect(address).await?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Builds the first packet of a connection.
fn initial(config: &ClientConfig, address: SocketAddr) -> Result<Vec<u8>> {
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let now = now();
    let (_, mut connection) = endpoint.connect(now, config.clone(), address, "localhost")?;
    let mut packet = Vec::new();
    let transmit = connection.poll_transmit(now, 1, &mut packet);
    packet.truncate(transmit.context("a client sends an Initial first")?.size);
    Ok(packet)
}

/// The present time, as a state machine of quinn wants it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Reads everything that waits.
pub(crate) fn received(sockets: &[UdpSocket]) -> Result<Exchanged> {
    let mut exchanged = Exchanged::default();
    let mut buf = vec![0; 65_536];
    for socket in sockets {
        loop {
            match socket.try_recv(&mut buf) {
                Ok(len) => {
                    exchanged.answers += 1;
                    exchanged.answered += len;
                    // RFC 9000 §17.2.5: the first four bits of a Retry packet are set.
                    exchanged.retries += usize::from(buf.first().is_some_and(|byte| *byte >= 0xf0));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("an answer cannot be read"),
            }
        }
    }
    Ok(exchanged)
}

/// RFC 9000 §8.1: a server sends at most three times the bytes that it received from an address
/// that it has not validated.
fn report_amplification(what: &str, (answered, sent): (usize, usize), report: &mut Report) {
    let ratio = float(answered) / float(sent);
    report.check(format!("{what}: bytes out per byte in"), ratio, "", Bound::AtMost(3.0));
}
