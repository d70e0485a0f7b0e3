//! A journey as a picture: four lines of two layers, the tunnel's queue, the losses, and the results of
//! all journeys.

mod chart;
mod losses;
mod progress;
mod results;
mod scale;
#[cfg(test)]
mod tests;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::Span,
    widgets::Widget,
};

pub(super) use self::{chart::Palette, results::JsonEntry};
use self::{
    chart::{Curve, DemoChart, FAINT, Look, STRONG},
    scale::RoundScale,
};
use super::{sample::DemoSample, watch::Moment};

/// The name of the origin's connection in legends.
const SERVER: &str = "server";

/// The name of the proxy's connection in legends.
const TUNNEL: &str = "tunnel";

/// What the two layers are.
const LAYERS: &str =
    "server: its connection to the client, end to end (E2E); tunnel: proxy to client";

/// The limits of the path between client and origin, so that scales are the same for all journeys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yardstick {
    pub(super) rate_mbps: f64,
    pub(super) rtt_ms: f64,
    /// The least time that a journey can take.
    pub(super) ideal_s: f64,
}

/// Everything that is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoPicture<'a> {
    /// What the running journey is.
    pub(super) title: &'a str,
    pub(super) moment: Moment<'a>,
    pub(super) entries: &'a [JsonEntry],
    pub(super) yardstick: Yardstick,
    pub(super) palette: Palette,
}

impl Widget for &DemoPicture<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let line = Constraint::Length(1);
        let rows = [line, line, Constraint::Fill(1), Constraint::Fill(1), line, line];
        let [title, progress, upper, lower, losses, key] = Layout::vertical(rows).areas(area);
        let halves = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2);
        let [rates, rtts] = halves.areas(upper);
        let [queue, results] = halves.areas(lower);
        Span::styled(self.title, STRONG).render(title, buffer);
        progress::render(&self.moment, progress, buffer);
        self.rates().render(rates, buffer);
        self.rtts().render(rtts, buffer);
        match self.queue() {
            Some(plot) => plot.render(queue, buffer),
            None => Span::styled("no tunnel, so no tunnel queue", FAINT).render(queue, buffer),
        }
        results::render(self.entries, results, buffer);
        losses::line(self.moment.readings, self.palette).render(losses, buffer);
        Span::styled(LAYERS, FAINT).render(key, buffer);
    }
}

impl DemoPicture<'_> {
    fn rates(&self) -> DemoChart {
        let curves =
            self.layers(|sample| sample.e2e_pacing_mbps, |sample| sample.tunnel_pacing_mbps);
        let rate = self.yardstick.rate_mbps;
        // The start may be so fast that the rest would be invisible on its scale.
        let values = RoundScale::up_to(most(&curves).clamp(1.2 * rate, 2.0 * rate));
        DemoChart::lines("rate Mbit/s", (self.seconds(), values), curves)
    }

    fn rtts(&self) -> DemoChart {
        let curves = self.layers(|sample| sample.e2e_srtt_ms, |sample| sample.tunnel_srtt_ms);
        let values = RoundScale::up_to(most(&curves).max(1.5 * self.yardstick.rtt_ms));
        DemoChart::lines("RTT ms", (self.seconds(), values), curves)
    }

    fn queue(&self) -> Option<DemoChart> {
        self.has_tunnel().then(|| {
            #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
            let kilobytes =
                |sample: &DemoSample| sample.tunnel_queue_bytes.map(|it| it as f64 / 1e3);
            let curve = self.curve(TUNNEL, self.palette.tunnel, kilobytes);
            let values = RoundScale::up_to(curve.max().max(10.0));
            DemoChart::lines("queue kB", (self.seconds(), values), vec![curve]).filled()
        })
    }

    /// The origin's curve, and the tunnel's where there is one.
    fn layers(
        &self,
        e2e: impl Fn(&DemoSample) -> Option<f64>,
        tunnel: impl Fn(&DemoSample) -> Option<f64>,
    ) -> Vec<Curve> {
        let e2e = self.curve(SERVER, self.palette.e2e, e2e);
        let tunnel = self.has_tunnel().then(|| self.curve(TUNNEL, self.palette.tunnel, tunnel));
        [e2e].into_iter().chain(tunnel).collect()
    }

    fn curve(
        &self,
        name: &'static str,
        look: Look,
        value: impl Fn(&DemoSample) -> Option<f64>,
    ) -> Curve {
        let samples = self.moment.samples.iter();
        Curve::new(name, look, samples.map(|sample| (sample.at_s, value(sample))))
    }

    fn has_tunnel(&self) -> bool {
        self.moment.readings.tunnel_queue.is_some()
    }

    fn seconds(&self) -> RoundScale {
        RoundScale::up_to(self.moment.at.as_secs_f64().max(self.yardstick.ideal_s))
    }
}

fn most(curves: &[Curve]) -> f64 {
    curves.iter().map(Curve::max).fold(0.0, f64::max)
}
