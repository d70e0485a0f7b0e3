//! The notes below the panels.

use super::{
    INSIDE, Layout, Legend, Paper, Plan, Series, Traces,
    text::{self, TEXT},
};

/// All notes, line by line.
pub(super) fn notes(
    plan: &Plan,
    series: &[Series],
    paper: &Paper,
    legend: &Legend<'_>,
    layout: &Layout<'_>,
) -> Vec<String> {
    let streams = plan.runs().map(|run| run.streams).max().unwrap_or(1);
    let points = || series.iter().flat_map(|series| &series.points);
    let seeds = plan.seeds();
    let streams = if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") };
    let has_bars = points().any(|point| point.high > point.low);
    let bars = if has_bars { "; bars: 95 % confidence interval of the mean" } else { "" };
    let mut texts = vec![format!("This work: seeds {seeds}, {streams}{bars}.")];
    texts.extend(legend.note.clone());
    texts.extend(numbered_names(layout));
    texts.extend(Traces::of(plan).map(|traces| traces.said().to_owned()));
    if points().any(|point| point.completed < point.runs) {
        texts.push(
            "Hollow markers: not all runs completed. Completion times count such a run as its time \
             limit, so that they are lower bounds; other values are over the completed runs."
                .to_owned(),
        );
    }
    for statement in &paper.statements {
        texts.push(match statement.source.as_str() {
            "" => statement.text.clone(),
            source => format!("The paper: {} [{source}]", statement.text),
        });
    }
    texts.iter().flat_map(|text| text::wrapped(text, TEXT, INSIDE)).collect()
}

/// The key of the numbers that replace names along the panels' x axes.
fn numbered_names(layout: &Layout<'_>) -> Vec<String> {
    let names = layout.plots.iter().filter_map(|plot| {
        let names = plot.x.numbered()?;
        Some(format!("{}: {names}.", plot.panel.x_label))
    });
    let mut notes: Vec<_> = names.collect();
    notes.dedup();
    notes
}
