//! `tandem ab`.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde_json::{Value, json};
use tandem_net::admin::get;
use tandem_server::{
    admin::{AbTimes, AdminAddr},
    process::runtime,
};

use crate::{
    error::{CliError, TopError},
    text, top,
};

const EXAMPLES: &str = "\
Examples:
  tandem ab
      Compares the modes of a proxy on this machine with --ab-test tecc=50,mdt=50 --admin 127.0.0.1:9433.
  tandem ab unix:/run/a unix:/run/b
      The same for the users of two proxies together.
  tandem ab --json
      The same for programs.";

/// Compare how long transfers took for the users of a proxy in an A/B test.
///
/// The proxy has --ab-test, which gives a part of its users less than mode tecc, and --admin. A transfer is a time in
/// which the packets of a flow follow each other without a pause of a second. Each size has a line of its own, because
/// small transfers are more frequent than large ones. Times are compared by their geometric means, with the interval
/// that has the true ratio in 95 of 100 tests. It counts transfers as independent of each other, which those of one
/// user are not: trust it when many users took part.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Ab {
    /// Where the --admin of each proxy listens
    #[arg(value_name = "ADMIN", env = "TANDEM_ADMIN", default_value = "127.0.0.1:9433")]
    admin: Vec<AdminAddr>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One size: its times in the first arm, against which others are compared, and in the others.
struct Line<'a> {
    size: &'a str,
    base: Option<&'a AbTimes>,
    arms: Vec<&'a AbTimes>,
}

impl Ab {
    /// Asks the proxies and prints the comparison.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let runtime = runtime()?;
        let mut all: Vec<AbTimes> = Vec::new();
        for address in self.admin {
            let answer = runtime.block_on(get(&address.0, "/api/now"));
            let json =
                answer.map_err(|error| TopError::NoAnswer { address: address.clone(), error })?;
            let now = top::read_server(&json)
                .map_err(|error| TopError::ForeignAnswer { address, error })?;
            for times in now.ab_test {
                let is_same = |it: &&mut AbTimes| it.mode == times.mode && it.size == times.size;
                match all.iter_mut().find(is_same) {
                    Some(sum) => sum.add(&times),
                    None => all.push(times),
                }
            }
        }
        if self.json { text::print(json(&all)) } else { text::print(table(&all)) }
    }
}

/// The mode against which the others are compared: the least of those that users have.
fn base(all: &[AbTimes]) -> Option<&str> {
    ["mdt", "rmdt", "tecc"].into_iter().find(|mode| all.iter().any(|it| it.mode == **mode))
}

/// The sizes in their order.
fn lines<'a>(all: &'a [AbTimes], base: &str) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let sizes = tandem_node::proxy::Transfers::SIZES;
    for (size, _) in sizes {
        let arms: Vec<_> = all.iter().filter(|it| it.size == size).collect();
        if let Some(first) = arms.first() {
            let base = arms.iter().copied().find(|it| it.mode == base);
            lines.push(Line { size: &first.size, base, arms });
        }
    }
    lines
}

fn json(all: &[AbTimes]) -> Value {
    let Some(base) = base(all) else { return json!({ "compared_with": null, "times": [] }) };
    let times = lines(all, base).into_iter().flat_map(|line| {
        line.arms.into_iter().map(move |it| {
            let ratio = line.base.map(|base| it.over(base));
            let interval = ratio.and_then(|ratio| ratio.interval);
            json!({
                "mode": it.mode,
                "size": it.size,
                "transfers": it.transfers,
                "mean_s": it.mean_s,
                "geometric_mean_s": it.geometric_mean_s(),
                "ratio": ratio.map(|ratio| ratio.ratio),
                "ratio_low": interval.map(|(low, _)| low),
                "ratio_high": interval.map(|(_, high)| high),
            })
        })
    });
    json!({ "compared_with": base, "times": times.collect::<Vec<_>>() })
}

fn table(all: &[AbTimes]) -> String {
    let Some(base) = base(all) else {
        return "No transfer of a user in an A/B test has ended yet. The proxy needs --ab-test, and clients that ask for \
                mode tecc or auto."
            .to_owned();
    };
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    let over = format!("time over {base}");
    table.set_header([
        "size",
        "mode",
        "transfers",
        "mean",
        "geometric mean",
        &over,
        "95 % interval",
    ]);
    for line in lines(all, base) {
        for it in line.arms {
            let ratio = line.base.filter(|base| base.mode != it.mode).map(|base| it.over(base));
            let interval = ratio.and_then(|ratio| ratio.interval);
            table.add_row([
                line.size.to_owned(),
                it.mode.clone(),
                it.transfers.to_string(),
                seconds(it.mean_s),
                seconds(it.geometric_mean_s()),
                ratio.map_or_else(String::new, |ratio| format!("{:.3}", ratio.ratio)),
                match (ratio, interval) {
                    (Some(_), Some((low, high))) => format!("{low:.3} to {high:.3}"),
                    (Some(_), None) => "too few transfers".to_owned(),
                    (None, _) => String::new(),
                },
            ]);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mode: &str, size: &str, transfers: u64, seconds: f64) -> AbTimes {
        AbTimes {
            mode: mode.to_owned(),
            size: size.to_owned(),
            transfers,
            mean_s: seconds,
            log_mean: seconds.ln(),
            log_variance: 0.04,
        }
    }

    #[test]
    fn each_size_is_compared_with_the_least_mode() {
        let all = [
            times("tecc", "100 kB to 1 MB", 400, 0.6),
            times("tecc", "1 to 10 MB", 3, 2.0),
            times("mdt", "100 kB to 1 MB", 400, 1.2),
            times("mdt", "1 to 10 MB", 4, 2.5),
        ];
        assert_eq!(
            table(&all),
            "\
| size           | mode | transfers |   mean | geometric mean | time over mdt |     95 % interval |
|----------------|------|-----------|--------|----------------|---------------|-------------------|
| 100 kB to 1 MB | tecc |       400 | 600 ms |         600 ms |         0.500 |    0.486 to 0.514 |
| 100 kB to 1 MB | mdt  |       400 | 1.20 s |         1.20 s |               |                   |
| 1 to 10 MB     | tecc |         3 | 2.00 s |         2.00 s |         0.800 | too few transfers |
| 1 to 10 MB     | mdt  |         4 | 2.50 s |         2.50 s |               |                   |"
        );
        let json = json(&all);
        assert_eq!(json["compared_with"], "mdt");
        assert_eq!(
            (&json["times"][0]["ratio"], &json["times"][2]["ratio_low"]),
            (&json!(0.5), &Value::Null)
        );
    }

    #[test]
    fn without_transfers_the_table_says_what_is_missing() {
        assert!(table(&[]).contains("--ab-test"));
        assert_eq!(json(&[]), json!({ "compared_with": null, "times": [] }));
    }
}
