//! What a terminal shows while a part of the demo runs: a picture, or else a bar for each download.

use super::{Demo, journey::Journey, stage::DemoStage, table::Cells};
use crate::progress::{Bar, Bars, Show};

/// The picture or the bars. Both are removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Live {
    stage: Option<DemoStage>,
    bars: Bars,
    rows: Vec<Bar>,
}

impl Live {
    /// Shows these journeys, which wait: as a picture if the terminal is large enough.
    pub(super) fn open(demo: &Demo, journeys: &[Journey]) -> Self {
        let stage = if demo.is_silent() { None } else { DemoStage::open(demo, journeys) };
        let show = if stage.is_some() || demo.is_silent() { Show::Never } else { Show::OnTerminal };
        let bars = Bars::new(show);
        let rows = journeys.iter().map(|it| bars.add(&it.to_string(), "waiting")).collect();
        Self { stage, bars, rows }
    }

    /// Notes that the journey at this place begins. Returns its bar, and the picture if there is one.
    pub(super) fn begin(
        &mut self,
        place: usize,
        journey: Journey,
    ) -> (Bar, Option<&mut DemoStage>) {
        if let Some(stage) = &mut self.stage {
            stage.begin(place, journey);
        }
        let bar = self.rows.get(place).cloned().unwrap_or_else(Bar::hidden);
        (bar, self.stage.as_mut())
    }

    /// Notes the result of the journey at this place.
    pub(super) fn end(&mut self, place: usize, cells: Cells) {
        let [_, time, _, goodput, ..] = &cells;
        if let Some(bar) = self.rows.get(place) {
            bar.finish(format!("{time}, {goodput}"));
        }
        if let Some(stage) = &mut self.stage {
            stage.end(place, cells);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.bars.clear();
    }
}
