//! The traces that the links of runs follow.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tandem_netem::{Capacity, RateTrace, Seed, SyntheticTrace};

use super::{Parameters, RunError};

/// The traces that runs follow. Each is read once.
#[derive(Debug, Default)]
pub struct TraceStore {
    traces: BTreeMap<PathBuf, Arc<RateTrace>>,
}

impl TraceStore {
    /// Reads all traces that these runs need.
    pub fn load<'a>(runs: impl IntoIterator<Item = &'a Parameters>) -> Result<Self, RunError> {
        let mut store = Self::default();
        for run in runs {
            for path in run.trace.iter().chain(&run.uplink_trace) {
                if !store.traces.contains_key(path) {
                    let trace = read(path)?;
                    store.traces.insert(path.clone(), Arc::new(trace));
                }
            }
        }
        Ok(store)
    }

    /// The capacity of a link that follows a trace from a random time on.
    pub(super) fn capacity(&self, path: &Path, seed: Seed) -> Result<Capacity, RunError> {
        let trace = self.traces.get(path).ok_or_else(|| RunError::NotLoaded(path.to_owned()))?;
        let length = u64::try_from(trace.duration().as_millis()).unwrap_or(u64::MAX);
        let has_fixed_start = synthetic(path).is_some_and(SyntheticTrace::has_fixed_start);
        let offset = if has_fixed_start { 0 } else { seed.0 % length.max(1) };
        let offset = Duration::from_millis(offset);
        Ok(Capacity::Trace { trace: trace.clone(), offset })
    }
}

/// Reads the file, or generates the trace that `synthetic:KIND` names. `$NAME/` at the beginning is
/// an environment variable.
fn read(path: &Path) -> Result<RateTrace, RunError> {
    let name = path.to_str().unwrap_or_default();
    if let Some((variable, rest)) = name.strip_prefix('$').and_then(|name| name.split_once('/')) {
        let Some(folder) = env::var_os(variable) else {
            let allowed = "the variable of the environment that it begins with is not set";
            return Err(RunError::Parameter { name: "trace", seen: name.to_owned(), allowed });
        };
        return Ok(RateTrace::read(&Path::new(&folder).join(rest))?);
    }
    let Some(kind) = name.strip_prefix(SyntheticTrace::PREFIX) else {
        return Ok(RateTrace::read(path)?);
    };
    let kind: SyntheticTrace = kind.parse()?;
    Ok(kind.generate(SyntheticTrace::DEFAULT_SEED, kind.usual_duration())?)
}

/// The kind of trace that `synthetic:KIND` names.
fn synthetic(path: &Path) -> Option<SyntheticTrace> {
    path.to_str()?.strip_prefix(SyntheticTrace::PREFIX)?.parse().ok()
}
