//! `tandem qlog`: the connections of one download in one picture.

mod picture;
mod trace;

use std::{
    fs,
    path::{Path, PathBuf},
};

use plotters::style::RGBColor;
use tandem_server::admin::words::{bytes, ms};

use self::{
    picture::{COLORS, CurvePanel, PictureCurve},
    trace::{LayerPlace, QlogHead, Trace},
};
use crate::{
    error::{CliError, QlogError},
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem qlog qlog -o picture.svg
      Draws the newest download of which the folder has files, as those of get --qlog-dir qlog.
  tandem qlog qlog proxy-qlog origin-qlog
      With the files of the servers it draws what the senders saw.
  tandem qlog qlog --chain 7f6f2ccdb23f2abb
      Draws another download.";

/// The largest number of files that are looked at: a day of a busy proxy. More are likely a wrong folder.
const FILES_MAX: usize = 100_000;

/// Draw the tunnels and the end-to-end connection of one download on one time axis, from qlog files.
///
/// The picture has the congestion windows, the RTTs, lost packets, and what tunnels sent again. The qlog of a client
/// (--qlog-dir) says which connections belong together. Of each connection the end is drawn that has sent more, if its
/// file is there.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Qlog {
    /// Folders with qlog files
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,

    /// Where to write the picture (SVG)
    #[arg(short, long, value_name = "FILE", default_value = "qlog.svg")]
    output: PathBuf,

    /// Which download, by the `tandem_chain` of its files [default: the newest]
    #[arg(long, value_name = "ID")]
    chain: Option<String>,
}

/// One connection, and the file from which it is drawn.
struct DrawnLayer {
    place: LayerPlace,
    trace: Trace,
}

impl Qlog {
    /// Writes the picture, and prints what is on it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let heads = self.heads()?;
        let of_clients = heads.iter().filter(|head| match (&head.place, &self.chain) {
            (Some(place), Some(chain)) => place.chain == *chain,
            (place, _) => place.is_some(),
        });
        let newest = of_clients.max_by_key(|head| head.modified);
        let place = newest.and_then(|head| head.place.as_ref()).ok_or_else(|| self.nothing())?;
        let chain = &place.chain;
        let layers = layers(&heads, chain)?;
        let names: Vec<_> = layers.iter().map(|layer| layer.place.name()).collect();
        let legend = layers
            .iter()
            .zip(&names)
            .map(|(layer, name)| format!("{name} (seen by the {})", layer.trace.seen_by()));
        let svg =
            picture::draw(&heading(&layers, chain), &legend.collect::<Vec<_>>(), &panels(&layers));
        fs::write(&self.output, svg).map_err(CliError::write(&self.output))?;
        for (layer, name) in layers.iter().zip(&names) {
            text::print(layer.trace.summary(name))?;
        }
        text::say(format_args!("wrote {}", self.output.display()));
        Ok(())
    }

    /// What the files say of themselves.
    fn heads(&self) -> Result<Vec<QlogHead>, CliError> {
        let mut heads = Vec::new();
        for folder in &self.folders {
            let unreadable = |error| QlogError::Unreadable { file: folder.clone(), error };
            for entry in fs::read_dir(folder).map_err(unreadable)?.take(FILES_MAX) {
                let path = entry.map_err(unreadable)?.path();
                if path.extension().is_some_and(|ending| ending == "qlog") {
                    heads.extend(QlogHead::read(&path));
                }
            }
        }
        Ok(heads)
    }

    fn nothing(&self) -> QlogError {
        QlogError::NoQlogs { folders: self.folders.clone(), chain: self.chain.clone() }
    }
}

/// What the picture is about: how long the end-to-end connection lasted, what it carried, and its number.
fn heading(layers: &[DrawnLayer], chain: &str) -> [String; 2] {
    let (millis, carried) = layers.last().map_or((0.0, 0), |layer| layer.trace.carried());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = carried as f64 * 8.0 / 1e3 / millis.max(1e-3);
    let title = format!(
        "Download: {:.2} s, {} of packets, {rate:.2} Mbit/s on average",
        millis / 1e3,
        bytes(carried)
    );
    let from_client = layers.iter().filter(|layer| layer.trace.is_client).count();
    let note = if from_client == 0 {
        format!("tandem_chain {chain}")
    } else {
        format!(
            "tandem_chain {chain}. What a client saw has the windows of the client, which sends little; the qlogs of \
             the servers have those of the senders."
        )
    };
    [title, note]
}

/// The connections of a chain, the outermost first.
fn layers(heads: &[QlogHead], chain: &str) -> Result<Vec<DrawnLayer>, CliError> {
    let mut layers = Vec::new();
    for head in heads {
        let Some(place) = head.place.as_ref().filter(|place| place.chain == chain) else {
            continue;
        };
        let of_group = heads.iter().filter(|other| other.group == head.group);
        let traces: Vec<_> = of_group.map(|it| read(&it.path)).collect::<Result<_, _>>()?;
        let client = traces.iter().filter(|trace| trace.is_client);
        let least_rtt = client.filter_map(|trace| trace.least_rtt).fold(f64::INFINITY, f64::min);
        let least_rtt = if least_rtt.is_finite() { least_rtt } else { 0.0 };
        let Some(mut trace) = traces.into_iter().max_by_key(|trace| trace.sent_bytes) else {
            continue;
        };
        // A server's file begins when the first packet has arrived.
        let delay = if trace.is_client { 0.0 } else { least_rtt / 2.0 };
        trace.shift(place.offset + delay);
        layers.push(DrawnLayer { place: place.clone(), trace });
    }
    layers.sort_by(|DrawnLayer { place: a, .. }, DrawnLayer { place: b, .. }| {
        a.layer.cmp(&b.layer).then(a.offset.total_cmp(&b.offset))
    });
    Ok(layers)
}

fn read(path: &Path) -> Result<Trace, QlogError> {
    Trace::read(path).map_err(|error| QlogError::Unreadable { file: path.to_owned(), error })
}

fn panels(layers: &[DrawnLayer]) -> [CurvePanel; 4] {
    let panel = |title, least, format, points: fn(&Trace) -> &[(f64, f64)]| {
        let line = |(layer, color): (&DrawnLayer, &RGBColor)| PictureCurve {
            color: *color,
            points: points(&layer.trace).to_vec(),
        };
        CurvePanel {
            title,
            least,
            format,
            lines: layers.iter().zip(COLORS.iter().cycle()).map(line).collect(),
        }
    };
    [
        panel("Congestion window (bytes)", 1.0, size, |trace| &trace.windows),
        panel("Smoothed RTT", 1.0, |millis| ms(millis / 1000.0), |trace| &trace.rtts),
        panel("Packets lost so far (number)", COUNT_MIN, count, |trace| &trace.lost),
        panel("Datagrams sent again by tunnels so far (number)", COUNT_MIN, count, |trace| {
            &trace.repaired
        }),
    ]
}

/// The least end of an axis for counts, so that its marks are whole numbers.
const COUNT_MIN: f64 = 5.0;

/// A number of packets.
fn count(value: f64) -> String {
    format!("{value:.0}")
}

#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a window")]
fn size(value: f64) -> String {
    bytes(value as u64)
}
