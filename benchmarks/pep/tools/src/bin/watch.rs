//! Measures with `watch.bpf.o` until standard input ends: `watch OBJECT TO_SERVER TO_CLIENT COUNT SKIP`, where both are
//! devices. Then prints, as JSON, nanoseconds: minimum, mean, percentiles 50 and 99, and maximum, and of how many
//! packets, without the first SKIP ones.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    maps::Array,
    programs::{
        LinkOrder, SchedClassifier, TcAttachType,
        tc::TcAttachOptions,
    },
};

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [object, to_server, to_client, count, skip] = given.as_slice() else {
        anyhow::bail!("watch OBJECT TO_SERVER TO_CLIENT COUNT SKIP");
    };
    let (count, skip): (u32, u32) = (count.parse()?, skip.parse()?);
    let mut program = Ebpf::load_file(object)?;
    for (name, device, place, order) in [
        ("arrive", to_server, TcAttachType::Ingress, LinkOrder::first()),
        ("acknowledge", to_server, TcAttachType::Egress, LinkOrder::last()),
        ("forward", to_client, TcAttachType::Egress, LinkOrder::last()),
    ] {
        let found: &mut SchedClassifier =
            program.program_mut(name).context("a program is missing")?.try_into()?;
        found.load()?;
        found.attach_with_options(device, place, TcAttachOptions::TcxOrder(order))?;
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let fields = ["forwarded", "newest", "oldest"].map(|name| -> Result<String> {
        let map: Array<_, u32> = program.map(name).context("a map is missing")?.try_into()?;
        let mut all = Vec::new();
        for number in skip..count {
            let took = map.get(&number, 0)?;
            if took > 0 {
                all.push(took);
            }
        }
        all.sort_unstable();
        Ok(format!("\"{name}\": {}", summary(&all)))
    });
    println!("{{{}}}", fields.into_iter().collect::<Result<Vec<_>>>()?.join(", "));
    Ok(())
}

fn summary(sorted: &[u32]) -> String {
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
        return "null".into();
    };
    let mean = sorted.iter().map(|&took| u64::from(took)).sum::<u64>() / sorted.len() as u64;
    let percentile = |percent: usize| sorted.get(sorted.len() * percent / 100).unwrap_or(most);
    format!("[{least}, {mean}, {}, {}, {most}, {}]", percentile(50), percentile(99), sorted.len())
}
