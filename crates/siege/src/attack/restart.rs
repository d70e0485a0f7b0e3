//! A proxy that dies and is started again, while its clients wait and strangers send packets.

use std::{
    iter,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use tandem_units::HumanDuration;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    idle::Crowd,
    proxy::Launch,
    report::{Report, float},
    user,
};

/// The length of a stranger's packets in bytes.
const PACKET: usize = 61;

/// How many sockets the clients share.
const SOCKETS: usize = 50;

/// Kill the proxy and start it again with the same key, while clients wait and a stranger sends packets
#[derive(Args)]
pub(crate) struct Restart {
    /// Number of clients, all at one address
    #[arg(long, default_value_t = 1500)]
    clients: usize,
    /// Silence after which a client sends a PING
    #[arg(long, default_value = "1s")]
    ping: HumanDuration,
    /// Number of packets of unknown connections that the stranger sends in a second
    #[arg(long, default_value_t = 5000)]
    packets: u32,
    /// Address of the stranger, which may be that of the clients
    #[arg(long, default_value = "127.0.0.1")]
    stranger: IpAddr,
    /// Time after the start of the new proxy in which every client must know that its connection has ended
    #[arg(long, default_value = "2s")]
    within: HumanDuration,
}

impl Restart {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("restart");
        let proxy = Launch { keeps_key: true, ..launch }.start().await?;
        let source = user::ADDRESSES[0];
        let addresses = iter::repeat_n(source, SOCKETS);
        let crowd = Crowd::open(&proxy.login, addresses, self.clients, self.ping.0).await?;
        report.check_all("clients that were let in", crowd.connections.len(), self.clients);
        let stranger = Stranger::start(self.stranger, proxy.login.address, self.packets)?;
        let died = Instant::now();
        let proxy = proxy.restart().await?;
        let (began, sent_before) = (Instant::now(), stranger.sent());
        report.note("the proxy was away", died.elapsed().as_secs_f64(), "s");
        for part in [4, 2, 1] {
            sleep_until(began + self.within.0 / part).await;
            let told = crowd.connections.len() - crowd.alive();
            let when = format!("clients that know it after {:?}", self.within.0 / part);
            if part == 1 {
                report.check_all(when, told, crowd.connections.len());
            } else {
                report.note(when, float(told), "");
            }
        }
        let sent = float(stranger.sent() - sent_before) / began.elapsed().as_secs_f64();
        report.note("packets of the stranger in a second", sent.round(), "");
        sleep(Duration::from_secs(8)).await;
        let told = crowd.connections.len() - crowd.alive();
        report.note("clients that know it 8 s later", float(told), "");
        stranger.end()?;
        crowd.leave().await;
        proxy.end().await?;
        Ok(report)
    }
}

/// A stranger who sends packets of connections that do not exist.
struct Stranger {
    sent: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<()>>,
}

impl Stranger {
    fn start(source: IpAddr, to: SocketAddr, rate: u32) -> Result<Self> {
        let socket = UdpSocket::bind((source, 0)).context("no socket for the stranger")?;
        let (sent, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, is_over) = (Arc::clone(&sent), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let mut packet: [u8; PACKET] = [0; PACKET];
            let began = Instant::now();
            for number in 0..u32::MAX {
                if is_over.load(Relaxed) {
                    break;
                }
                let due = began + Duration::from_secs(number.into()) / rate.max(1);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                packet.fill_with(rand::random);
                // RFC 9000 §17.3.1: the first two bits of a short header are 0 and 1.
                packet[0] = 0x40 | packet[0] & 0x3f;
                // An error says that an earlier packet met no listener.
                if socket.send_to(&packet, to).is_ok() {
                    counter.fetch_add(1, Relaxed);
                }
            }
            Ok(())
        });
        Ok(Self { sent, ends, thread })
    }

    fn sent(&self) -> usize {
        self.sent.load(Relaxed)
    }

    fn end(self) -> Result<()> {
        self.ends.store(true, Relaxed);
        self.thread.join().ok().context("the stranger failed")?
    }
}
