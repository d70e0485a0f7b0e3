//! Runs a PEP without a key until it is killed: `attach DEVICE PREFIX [PORT]`.
#![cfg(target_os = "linux")]
use std::time::Duration;

use tandem_pep::{Config, TcpForm};
use tandem_pep_linux::Router;
use tandem_wire::PepId;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let device = given.next().ok_or("a device is missing")?;
    let prefix = given.next().ok_or("a prefix of servers is missing")?.parse()?;
    let port = given.next().map(|port| port.parse()).transpose()?;
    let config = Config { id: PepId(5), key: None, flows_max: 1000, tcp_form: TcpForm::Flagless };
    let mut router = Router::attach(&[device], &[tandem_pep::Servers { prefix, port }], config)?;
    let mut shown = router.stats();
    loop {
        router.step(Duration::from_millis(200))?;
        if router.stats() != shown {
            shown = router.stats();
            println!("{shown:?}");
        }
    }
}
