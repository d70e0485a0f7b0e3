//! The kind of traces that a figure's links follow.

use tandem_netem::SyntheticTrace;

use crate::plan::Plan;

/// The kind of traces that the links of a plan's runs follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traces {
    /// Recordings of real links.
    Recorded,
    /// Traces that [`SyntheticTrace`] makes.
    Synthetic,
}

impl Traces {
    /// The kind of the plan's traces; `None` if no link follows a trace.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let names = names(plan);
        let is_synthetic = |name: &String| name.starts_with(SyntheticTrace::PREFIX);
        match (names.is_empty(), names.iter().any(is_synthetic)) {
            (true, _) => None,
            (false, true) => Some(Self::Synthetic),
            (false, false) => Some(Self::Recorded),
        }
    }

    /// The name in a table.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Synthetic => "synthetic",
        }
    }

    /// The note below a picture.
    pub(super) const fn said(self) -> &'static str {
        match self {
            Self::Recorded => "The traces are recordings, from the folder in TANDEM_TRACES.",
            Self::Synthetic => "The traces are synthetic, not recorded.",
        }
    }
}

/// Each trace that a plan's runs follow, once.
pub(super) fn names(plan: &Plan) -> Vec<String> {
    let mut names = Vec::new();
    for run in plan.runs() {
        for trace in run.trace.into_iter().chain(run.uplink_trace) {
            let name = trace.to_string_lossy().into_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}
