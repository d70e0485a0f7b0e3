//! The terminal on which a demo shows the progress of its journeys.

use tandem_netem::ideal_completion;

use super::{
    Demo,
    journey::Journey,
    table::Cells,
    view::{DemoPicture, JsonEntry, Palette, Yardstick},
    watch::Moment,
};
use crate::{outcome::seconds, screen::Screen, text};

/// Moments for each picture: ten pictures a second.
const MOMENTS_PER_PICTURE: u32 = 2;

/// Shows one journey after the other. The picture is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct DemoStage {
    screen: Screen,
    palette: Palette,
    yardstick: Yardstick,
    entries: Vec<JsonEntry>,
    /// The title of the picture: what the running journey is.
    title: String,
    moments: u32,
}

impl DemoStage {
    /// Opens the terminal; `None` if no picture can be drawn.
    pub(super) fn open(demo: &Demo, journeys: &[Journey]) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bit/s")]
        let rate_mbps = demo.rate.bits_per_second() as f64 / 1e6;
        let rtt = demo.rtt();
        let ideal = ideal_completion(demo.size, demo.rate, rtt, demo.loss);
        let yardstick =
            Yardstick { rate_mbps, rtt_ms: rtt.as_secs_f64() * 1e3, ideal_s: seconds(ideal) };
        let entries =
            journeys.iter().map(|journey| JsonEntry::Waiting(journey.to_string())).collect();
        Some(Self {
            screen: Screen::open()?,
            palette: Palette::new(text::may_be_coloured()),
            yardstick,
            entries,
            title: String::new(),
            moments: 0,
        })
    }

    /// Notes that the journey at this place begins.
    pub(super) fn begin(&mut self, place: usize, journey: Journey) {
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = JsonEntry::Running(journey.to_string());
        }
        self.title = format!("{journey} ({})", journey.meaning());
    }

    /// Draws the running journey, at most ten times a second.
    pub(super) fn show(&mut self, moment: Moment<'_>) {
        if self.moments.is_multiple_of(MOMENTS_PER_PICTURE) {
            self.screen.draw(&DemoPicture {
                title: &self.title,
                moment,
                entries: &self.entries,
                yardstick: self.yardstick,
                palette: self.palette,
            });
        }
        self.moments = self.moments.wrapping_add(1);
    }

    /// Notes the result of the journey at this place.
    pub(super) fn end(&mut self, place: usize, cells: Cells) {
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = JsonEntry::Finished(cells);
        }
    }
}
