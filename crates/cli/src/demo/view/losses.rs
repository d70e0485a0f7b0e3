//! The packets that both layers have lost so far, in one line.

use ratatui::text::{Line, Span};
use tandem_node::ConnectionStats;

use super::{
    super::gauges::Readings,
    SERVER, TUNNEL,
    chart::{Look, Palette, STRONG},
};

/// The share of lost packets of each layer that there is.
pub(super) fn line(readings: &Readings, palette: Palette) -> Line<'static> {
    let layers = [(SERVER, palette.e2e, &readings.e2e), (TUNNEL, palette.tunnel, &readings.tunnel)];
    let layers =
        layers.into_iter().filter_map(|(name, look, stats)| Some((name, look, stats.as_ref()?)));
    let mut line = Line::from(Span::styled("packets lost so far", STRONG));
    for (name, look, stats) in layers {
        line.extend(layer(name, look, stats));
    }
    line
}

fn layer(name: &str, look: Look, stats: &ConnectionStats) -> [Span<'static>; 4] {
    let &ConnectionStats { sent_packets, lost_packets, .. } = stats;
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 packets")]
    let share = 100.0 * lost_packets as f64 / sent_packets.max(1) as f64;
    let [key, name] = look.legend(name);
    [
        key,
        name,
        Span::styled(format!("{share:.1} %"), STRONG),
        Span::raw(format!(" of {sent_packets}")),
    ]
}
