//! The progress of many runs.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::progress::Show;

/// The interval at which the bar is drawn without news, so that its ETA is up to date.
const TICK: Duration = Duration::from_millis(200);

const TEMPLATE: &str = "[{bar:30}] {human_pos} of {human_len} runs, {per_sec:0.1}, ETA {eta}";

/// A bar on standard error, on a terminal only.
#[derive(Debug)]
pub(super) struct RunsBar(ProgressBar);

impl RunsBar {
    /// Makes a bar. `finished` runs were finished earlier, and the ETA does not include their
    /// speed.
    pub(super) fn new(show: Show, all: u64, finished: u64) -> Self {
        let is_shown = show == Show::OnTerminal && io::stderr().is_terminal() && finished < all;
        let target =
            if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(all), target);
        let style = ProgressStyle::with_template(TEMPLATE);
        bar.set_style(style.expect("the template above is well-formed").progress_chars("=> "));
        bar.set_position(finished);
        bar.reset_eta();
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Counts one more finished run.
    pub(super) fn advance(&self) {
        self.0.inc(1);
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
