//! Looks whether the other machines of a fleet are there, when packets of their connections come here.
//!
//! A load balancer gives such packets to another machine when the first one is gone. Then this machine should tell the
//! clients at once that their connections have ended. But somebody who has seen a connection ID can also send such a
//! packet. An answer would then end a connection that the other machine has. So this machine first asks the other one
//! ([`VersionProbe`]), which is silent if it is gone.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use tandem_node::quic::{Neighbours, VersionProbe};
use tokio::{
    net::UdpSocket,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::clock;

/// The time between two looks at a machine.
const INTERVAL: Duration = Duration::from_millis(100);

/// How many looks go by between two probes of a machine that has not answered yet.
const LOOKS_UNTIL_KNOWN: u32 = 10;

/// The number of probes without an answer after which a machine is gone. Clients learn within a second that their
/// connections have ended, and a machine that is busy for half a second keeps its connections.
const UNANSWERED_MAX: u32 = 7;

/// The time for which a machine that is there is probed after the last packet for it.
const WHILE_THERE: Duration = Duration::from_secs(2);

/// The time for which a machine that is gone is probed after the last packet for it. Clients that send nothing of their
/// own have an idle timeout of 30 s.
const WHILE_GONE: Duration = Duration::from_secs(60);

/// Probes the machines of a fleet for which packets come here, and notes which of them are gone. It never ends.
///
/// A machine is only taken for gone if it has answered before. So a wrong address, or a firewall between the machines,
/// does not look like the death of a machine.
pub async fn watch(neighbours: Neighbours) {
    let mut machines = Vec::new();
    for address in neighbours.addresses() {
        machines.push(NeighbourMachine::new(address).await);
    }
    let mut looks = interval(INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let now = clock::now();
        for index in neighbours.take_asked() {
            if let Some(machine) = machines.get_mut(index) {
                machine.asked = Some(now);
            }
        }
        for (index, machine) in machines.iter_mut().enumerate() {
            let was_gone = machine.is_gone();
            machine.look(now);
            let is_gone = machine.is_gone();
            if is_gone != was_gone {
                info!(machine = %machine.address, is_gone, "another machine of the fleet");
                neighbours.set_gone(index, is_gone);
            }
        }
    }
}

/// Another machine.
struct NeighbourMachine {
    address: SocketAddr,
    /// `None`: there is none, so that the machine cannot be asked.
    socket: Option<UdpSocket>,
    /// Whether the machine has ever answered.
    is_known: bool,
    /// When the last packet for the machine has come. `None`: that was long ago.
    asked: Option<Instant>,
    /// The probe that is repeated until it is answered.
    probe: VersionProbe,
    /// How often it has been sent.
    sent: u32,
    /// How many looks at the machine there were before it was known.
    looks: u32,
}

impl NeighbourMachine {
    async fn new(address: SocketAddr) -> Self {
        let socket = match bound(address).await {
            Ok(socket) => Some(socket),
            Err(error) => {
                warn!(machine = %address, %error, "another machine of the fleet cannot be asked whether it is there");
                None
            }
        };
        let probe = new_probe();
        Self { address, socket, is_known: false, asked: None, probe, sent: 0, looks: 0 }
    }

    /// Whether the machine has answered before, and does not answer now.
    const fn is_gone(&self) -> bool {
        self.is_known && self.sent > UNANSWERED_MAX
    }

    fn look(&mut self, now: Instant) {
        if self.takes_an_answer() {
            self.is_known = true;
            self.probe = new_probe();
            self.sent = 0;
        }
        if !self.is_known {
            if self.looks.is_multiple_of(LOOKS_UNTIL_KNOWN) {
                self.send();
            }
            self.looks = self.looks.wrapping_add(1);
            return;
        }
        let patience = if self.is_gone() { WHILE_GONE } else { WHILE_THERE };
        self.asked = self.asked.filter(|asked| now.saturating_duration_since(*asked) < patience);
        if self.asked.is_none() {
            self.sent = 0;
            return;
        }
        self.sent = self.sent.saturating_add(1);
        self.send();
    }

    /// Whether the probe has been answered since the last look.
    fn takes_an_answer(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut payload = [0; 256];
        let mut is_answered = false;
        // At most one answer follows a probe. Others may send something, too.
        for _ in 0..64 {
            match socket.try_recv(&mut payload) {
                // The source does not matter: a load balancer may have changed it.
                Ok(len) => {
                    let payload = payload.get(..len).unwrap_or_default();
                    is_answered |= self.probe.is_answered_by(payload);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        is_answered
    }

    fn send(&self) {
        if let Some(socket) = &self.socket {
            // What cannot be sent is not answered: a machine without a network takes the others for gone, and gets none
            // of their packets.
            socket.try_send_to(&self.probe.encode(), self.address).ok();
        }
    }
}

async fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any).await
}

/// A probe with unpredictable IDs.
fn new_probe() -> VersionProbe {
    let keys = RandomState::new();
    VersionProbe::new(keys.hash_one(1).to_be_bytes(), keys.hash_one(2).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    /// Answers probes as a server does.
    async fn serve(socket: &UdpSocket) {
        let mut packet = [0; 1500];
        loop {
            let (len, from) = socket.recv_from(&mut packet).await.unwrap();
            assert_eq!(len, VersionProbe::LEN);
            let (to, of) = (&packet[15..23], &packet[6..14]);
            let answer = [&[0x80, 0, 0, 0, 0, 8][..], to, &[8], of, &[0, 0, 0, 1]].concat();
            socket.send_to(&answer, from).await.unwrap();
        }
    }

    /// Waits until a machine is gone, or is there.
    async fn wait(neighbours: &Neighbours, is_gone: bool) {
        let reached = async {
            while neighbours.is_gone(&[2]) != is_gone {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(20), reached).await.expect("it is noticed");
    }

    #[tokio::test]
    async fn a_machine_that_does_not_answer_is_gone_until_it_does() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let neighbours = Neighbours::new([(vec![2], address)]);
        let test = async {
            sleep(10 * INTERVAL).await;
            assert!(!neighbours.is_gone(&[2]), "it has never answered");
            tokio::select! {
                () = serve(&socket) => {}
                () = sleep(20 * INTERVAL) => assert!(!neighbours.is_gone(&[2]), "it answers"),
            }
            wait(&neighbours, true).await; // nobody serves
            assert!(!neighbours.is_gone(&[3]), "nothing is known of others");
            tokio::select! {
                () = serve(&socket) => {}
                () = wait(&neighbours, false) => {}
            }
        };
        tokio::select! {
            () = watch(neighbours.clone()) => {}
            () = test => {}
        }
    }
}
