//! Runs a PEP without a key until it is killed: `attach DEVICE PREFIX [PORT [PACKETS]]`. With a number of packets, the
//! kernel makes the PEP-ACKs.
#![cfg(target_os = "linux")]
use std::time::Duration;

use tandem_pep::{Config, TcpForm};
use tandem_pep_linux::{Maker, Router};
use tandem_wire::PepId;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let device = given.next().ok_or("a device is missing")?;
    let prefix = given.next().ok_or("a prefix of servers is missing")?.parse()?;
    let port = given.next().map(|port| port.parse()).transpose()?;
    let packets = given.next().map(|packets| packets.parse()).transpose()?;
    let maker = packets.map_or(Maker::UserSpace, |packets| Maker::Kernel { packets });
    let config = Config { id: PepId(5), key: None, flows_max: 1000, tcp_form: TcpForm::Flagless };
    let mut router =
        Router::attach(&[device], &[tandem_pep::Servers { prefix, port }], config, maker)?;
    let mut shown = router.stats();
    loop {
        router.step(Duration::from_millis(200))?;
        if router.stats() != shown {
            shown = router.stats();
            println!("{shown:?}");
        }
    }
}
