//! The progress of the running journey, in one line.

use std::time::Duration;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::Line,
    widgets::{LineGauge, Widget},
};
use tandem_units::ByteCount;

use super::{super::watch::Moment, chart::FAINT, scale::short};

/// Draws the line.
pub(super) fn render(moment: &Moment<'_>, area: Rect, buffer: &mut Buffer) {
    let (body, len) = (moment.readings.body, moment.readings.body_len);
    let state = Line::from(if body == 0 {
        format!(" {}", moment.readings.awaited)
    } else {
        arrived(body, len, moment.at)
    });
    let width = |line: &Line<'_>| Constraint::Length(line.width().try_into().unwrap_or(u16::MAX));
    let widths = [Constraint::Fill(1), width(&state)];
    let [bar, right] = Layout::horizontal(widths).areas(area);
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
    let share = |len: u64| body as f64 / len.max(1) as f64;
    LineGauge::default()
        .ratio(len.map_or(0.0, share).clamp(0.0, 1.0))
        .label("")
        .filled_symbol("━")
        .unfilled_symbol("╌")
        .unfilled_style(FAINT)
        .render(bar, buffer);
    state.render(right, buffer);
}

fn arrived(body: u64, len: Option<u64>, at: Duration) -> String {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
    let megabytes = body as f64 / 1e6;
    let of = len.map_or_else(String::new, |len| format!(" of {}", ByteCount::new(len)));
    let seconds = at.as_secs_f64();
    let mbps = short(megabytes * 8.0 / seconds.max(1e-3));
    format!(" {megabytes:.2} MB{of}  {mbps} Mbit/s  {seconds:.1} s")
}
