//! Runs a PEP of the product until it is killed: `router DEVICE user|PACKETS`. With a number of packets, the kernel
//! makes the PEP-ACKs. Prints a line when it is ready, and what it has counted after each second.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tandem_pep_linux::{Maker, Router};

fn main() -> Result<()> {
    let mut given = std::env::args().skip(1);
    let device = given.next().context("a device is missing")?;
    let maker = match given.next().context("a maker is missing")?.as_str() {
        "user" => Maker::UserSpace,
        packets => Maker::Kernel { packets: packets.parse()? },
    };
    let servers = [tandem_pep::Servers { prefix: "0.0.0.0/0".parse()?, port: Some(pep_bench::SERVER_PORT) }];
    let mut router = Router::attach(&[device], &servers, pep_bench::config(), maker)?;
    println!("ready");
    let mut shown = Instant::now();
    loop {
        router.step(Duration::from_millis(200))?;
        if shown.elapsed() > Duration::from_millis(500) {
            shown = Instant::now();
            let stats = router.stats();
            let pep = stats.pep;
            println!("{} {} {} {}", pep.observed, pep.notices, pep.untold, stats.lost + stats.unsent);
        }
    }
}
