//! Progress bars on standard error, on a terminal only.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// How often a bar is drawn although nothing happens, so that its ETA does not stand still.
const TICK: Duration = Duration::from_millis(200);

const WITH_TOTAL: &str =
    "{prefix:>8} [{bar:30}] {decimal_bytes:>9} of {decimal_total_bytes} {rate} ETA {eta}";
const WITHOUT_TOTAL: &str = "{prefix:>8} {spinner} {decimal_bytes:>9} {rate}";
const WAITING: &str = "{prefix:>8} {msg}";

/// Whether to draw at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// If standard error is a terminal.
    OnTerminal,
    /// In no case.
    Never,
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
        let bar = self.0.add(ProgressBar::no_length());
        bar.set_style(style(WAITING));
        bar.set_prefix(name.to_owned());
        bar.set_message(message);
        bar.tick();
        Bar(bar)
    }

    /// Takes all bars away.
    pub(crate) fn clear(&self) {
        // Fails only if standard error is gone, and then so are the bars.
        if self.0.clear().is_err() {}
    }
}

/// How far one download is.
#[derive(Clone, Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// What is being waited for.
    pub(crate) fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// The download begins. `len`: its length in bytes, if known.
    pub(crate) fn start(&self, len: Option<u64>) {
        self.0.set_style(style(if len.is_some() { WITH_TOTAL } else { WITHOUT_TOTAL }));
        if let Some(len) = len {
            self.0.set_length(len);
        }
        self.0.reset_elapsed();
        self.0.reset_eta();
        self.0.enable_steady_tick(TICK);
    }

    /// So many bytes more have arrived.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// The download is complete; the bar stays with a last word.
    pub(crate) fn finish(&self, message: String) {
        self.0.set_style(style(WAITING));
        self.0.finish_with_message(message);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates above are well-formed")
        .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let mbps = state.per_sec() * 8.0 / 1e6;
            // The writer is a string, whose growth cannot fail.
            if write!(out, "{mbps:6.2} Mbit/s").is_err() {}
        })
        .progress_chars("=> ")
}
