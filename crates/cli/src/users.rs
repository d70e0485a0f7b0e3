//! `tandem users`.

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde_json::{Value, json};
use tandem_node::proxy::Month;
use tandem_server::{
    tls,
    users::{Row, Store, unix},
};
use tandem_units::ByteCount;
use x509_parser::prelude::ASN1Time;

use crate::{error::CliError, text};

const EXAMPLES: &str = "\
Examples:
  tandem users --store usage.db
      What the users of a proxy with --usage-store usage.db have used in this month.
  tandem users --store usage.db --month 2026-10 --json
      The same of an earlier month, for programs.";

/// Print what the users of a proxy have used in a month.
///
/// The store is that of `tandem proxy --usage-store FILE`, which may run at the same time. It writes once a
/// minute.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct UsersCommand {
    /// File with the store of a proxy
    #[arg(long, value_name = "FILE")]
    store: PathBuf,

    /// Month in UTC, such as 2026-11; the last 13 months are kept [default: this month]
    #[arg(long, value_name = "MONTH", value_parser = month)]
    month: Option<Month>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn month(text: &str) -> Result<Month, String> {
    text.parse().map_err(|()| "a month has a year and a month, such as 2026-11".to_owned())
}

impl UsersCommand {
    /// Prints the table.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let month = self.month.unwrap_or_else(|| Month::of(unix()));
        let rows = Store::open_to_read(&self.store).and_then(|store| store.month(month));
        let rows = rows?;
        if self.json { text::print(json(month, &rows)) } else { text::print(table(&rows)) }
    }
}

fn date(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| ASN1Time::from_timestamp(unix).ok());
    time.map_or_else(|| "unknown".to_owned(), tls::utc)
}

fn json(month: Month, rows: &[Row]) -> Value {
    let users: Vec<_> = rows
        .iter()
        .map(|Row { kept, limit }| {
            json!({
                "user": kept.name,
                "to_target_bytes": kept.bytes.to_target,
                "to_client_bytes": kept.bytes.to_client,
                "limit_bytes": limit,
                "last_seen": kept.last_seen.as_secs(),
            })
        })
        .collect();
    json!({ "month": month.to_string(), "users": users })
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["user", "to target", "to client", "limit", "last seen (UTC)"]);
    for Row { kept, limit } in rows {
        let bytes = |bytes| ByteCount::new(bytes).to_string();
        table.add_row([
            kept.name.clone(),
            bytes(kept.bytes.to_target),
            bytes(kept.bytes.to_client),
            limit.map_or_else(|| "none".to_owned(), bytes),
            date(kept.last_seen.as_secs()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
