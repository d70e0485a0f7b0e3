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

/// A packet of a version that nobody speaks, as RFC 9000 §15 reserves it.
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
        let sent = self.send_initials(&proxy.login, &one, 1).await?;
        sleep(Duration::from_secs(5)).await;
        report_amplification("one forged Initial", (received(&one)?.1, sent), &mut report);

        let small = sockets(address, 1).await?;
        let bytes = self.send_small(&small).await?;
        let (answers, answered) = received(&small)?;
        report.check_none("answers to small packets of an unknown version", answers);
        report.note("bytes of those answers per byte", float(answered) / float(bytes), "");

        let many = sockets(address, self.ports).await?;
        let sent = self.send_initials(&proxy.login, &many, self.count).await?;
        report.usage("after the last Initial", &proxy.usage()?);
        let pace = (1, Duration::from_secs(10));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        sleep(self.rest.0).await;
        report_amplification("all Initials", (received(&many)?.1, sent), &mut report);
        let after = proxy.usage()?;
        report.usage("after a rest", &after);
        let bound = Bound::AtMost(self.memory.get() as f64 / 1e6);
        report.check("peak of memory", after.peak_mb(), "MB", bound);
        proxy.end().await?;
        Ok(report)
    }

    /// Sends Initial packets and returns the number of their bytes.
    async fn send_initials(
        &self,
        login: &Login,
        sockets: &[UdpSocket],
        count: usize,
    ) -> Result<usize> {
        let config = login.config(None);
        let mut sent = 0;
        for (index, socket) in sockets.iter().cycle().take(count).enumerate() {
            let initial = initial(&config, login.address)?;
            sent += socket.send(&initial).await?;
            if index % 50 == 49 {
                sleep(Duration::from_secs(50) / u32::try_from(self.rate.max(1))?).await;
            }
        }
        Ok(sent)
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

/// Opens sockets that send to the proxy.
async fn sockets(address: SocketAddr, count: usize) -> Result<Vec<UdpSocket>> {
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
    transmit.context("a client sends an Initial first")?;
    Ok(packet)
}

/// The present time, as a state machine of quinn wants it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Reads everything that waits, and returns the number of packets and of their bytes.
fn received(sockets: &[UdpSocket]) -> Result<(usize, usize)> {
    let (mut packets, mut bytes) = (0, 0);
    let mut buf = vec![0; 65_536];
    for socket in sockets {
        loop {
            match socket.try_recv(&mut buf) {
                Ok(len) => (packets, bytes) = (packets + 1, bytes + len),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("an answer cannot be read"),
            }
        }
    }
    Ok((packets, bytes))
}

/// RFC 9000 §8.1: a server sends at most three times the bytes that it received from an address
/// that it has not validated.
fn report_amplification(what: &str, (answered, sent): (usize, usize), report: &mut Report) {
    let ratio = float(answered) / float(sent);
    report.check(format!("{what}: bytes out per byte in"), ratio, "", Bound::AtMost(3.0));
}
