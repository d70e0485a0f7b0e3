//! Progress bars on standard error, on a terminal only.

use std::{
    fmt,
    io::{self, IsTerminal},
    time::Duration,
};

use crate::screen;
use indicatif::{
    HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};

/// How often a bar is drawn although nothing happens, so that its ETA does not stand still.
const TICK: Duration = Duration::from_millis(200);

/// How long an estimate of the rate needs to settle.
const SETTLED: Duration = Duration::from_secs(15);

/// The lines of a terminal with this many columns or more, the widest first.
const WITH_TOTAL: [(u16, &str); 3] = [
    (100, "{prefix:>12} [{bar:30}] {decimal_bytes:>9} of {decimal_total_bytes} {rate} {left}"),
    (64, "{prefix:>12} [{bar:10}] {percent:>3}% {rate} {left}"),
    (0, "{percent:>3}% {rate} {left}"),
];
const WITHOUT_TOTAL: [(u16, &str); 2] =
    [(48, "{prefix:>12} {spinner} {decimal_bytes:>9} {rate}"), (0, "{decimal_bytes} {rate}")];
const WAITING: &str = "{prefix:>12} {wide_msg}";

/// The longest name that is shown whole.
const NAME_MAX: usize = 12;

/// Whether to draw at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// If standard error is a terminal.
    OnTerminal,
    /// Never.
    Never,
}

/// Receives the progress of a download.
pub(crate) trait Progress {
    /// The download waits for this.
    fn say(&self, message: String);

    /// The download begins. `len`: its length in bytes, if known.
    fn start(&self, len: Option<u64>);

    /// This number of bytes has arrived since the last call.
    fn advance(&self, bytes: u64);
}

/// The bars of a program, one below the other.
#[derive(Debug)]
pub(crate) struct Bars(MultiProgress);

impl Bars {
    pub(crate) fn new(show: Show) -> Self {
        let is_shown = show == Show::OnTerminal && io::stderr().is_terminal();
        Self(MultiProgress::with_draw_target(if is_shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        }))
    }

    /// Adds a bar that says `message` until something arrives.
    pub(crate) fn add(&self, name: &str, message: &'static str) -> Bar {
        if self.0.is_hidden() {
            return Bar::hidden();
        }
        let bar = self.0.add(ProgressBar::no_length());
        bar.set_style(style(WAITING));
        bar.set_prefix(shortened(name));
        bar.set_message(message);
        bar.tick();
        Bar(bar)
    }

    /// Removes all bars.
    #[cfg(feature = "lab")]
    pub(crate) fn clear(&self) {
        // Fails only if standard error is gone, and then so are the bars.
        if self.0.clear().is_err() {}
    }
}

/// How far one download is.
#[derive(Clone, Debug)]
pub(crate) struct Bar(ProgressBar);

impl Progress for Bar {
    fn say(&self, message: String) {
        self.0.set_message(message);
    }

    fn start(&self, len: Option<u64>) {
        // A hidden bar needs neither a style nor a thread that draws it.
        if self.0.is_hidden() {
            return;
        }
        let columns = screen::size().map_or(80, |size| size.width);
        let template = if len.is_some() {
            fitting(&WITH_TOTAL, columns)
        } else {
            fitting(&WITHOUT_TOTAL, columns)
        };
        self.0.set_style(style(template));
        if let Some(len) = len {
            self.0.set_length(len);
        }
        self.0.reset_elapsed();
        self.0.reset_eta();
        self.0.enable_steady_tick(TICK);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Bar {
    /// A bar that is never drawn.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// The download is complete; the bar stays with this message.
    #[cfg(feature = "lab")]
    pub(crate) fn finish(&self, message: String) {
        self.0.set_style(style(WAITING));
        self.0.finish_with_message(message);
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// The template for a terminal with this many columns.
fn fitting(templates: &[(u16, &'static str)], columns: u16) -> &'static str {
    let found = templates.iter().find(|(least, _)| columns >= *least);
    found.map_or(WAITING, |(_, template)| template)
}

/// The name with its middle left out, if it is long.
fn shortened(name: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= NAME_MAX {
        return name.to_owned();
    }
    let side = (NAME_MAX - 1) / 2;
    let (start, end) = (characters.iter().take(side), characters.iter().rev().take(side + 1).rev());
    start.chain([&'…']).chain(end).collect()
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates above are well-formed")
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let mbps = bytes_per_second(state) * 8.0 / 1e6;
            // The writer is a string, whose growth cannot fail.
            if write!(out, "{mbps:6.2} Mbit/s").is_err() {}
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
            #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
            let left = state.len().unwrap_or_default().saturating_sub(state.pos()) as f64;
            let seconds = left / bytes_per_second(state);
            let left = Duration::try_from_secs_f64(seconds).map(HumanDuration);
            if left.is_ok_and(|left| write!(out, "ETA {left:#}").is_err()) {}
        })
        .progress_chars("=> ")
}

/// The average since the start at first, because indicatif's estimate takes seconds to settle; then
/// that estimate, which follows changes.
fn bytes_per_second(state: &ProgressState) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
    let average = state.pos() as f64 / state.elapsed().as_secs_f64().max(1e-3);
    if state.elapsed() < SETTLED { average } else { state.per_sec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_its_terminal() {
        for columns in [40, 63, 64, 80, 99, 100, 200] {
            for templates in [&WITH_TOTAL[..], &WITHOUT_TOTAL] {
                // The longest that is usual for each part.
                let line = fitting(templates, columns)
                    .replace("{prefix:>12}", &shortened("a_long_name_of_a_file.iso"))
                    .replace("{bar:30}", &"=".repeat(30))
                    .replace("{bar:10}", &"=".repeat(10))
                    .replace("{spinner}", "|")
                    .replace("{percent:>3}", "100")
                    .replace("{decimal_bytes:>9}", "123.45 MB")
                    .replace("{decimal_bytes}", "123.45 MB")
                    .replace("{decimal_total_bytes}", "123.45 GB")
                    .replace("{rate}", "1234.56 Mbit/s")
                    .replace("{left}", "ETA 59m");
                assert!(line.chars().count() <= columns.into(), "{columns}: {line}");
                assert!(!line.contains('{'), "{line}");
            }
        }
    }

    #[test]
    fn a_long_name_keeps_its_start_and_its_end() {
        assert_eq!(shortened("file.iso"), "file.iso");
        assert_eq!(shortened("debian-13.1.0-amd64.iso"), "debia…64.iso");
    }
}
