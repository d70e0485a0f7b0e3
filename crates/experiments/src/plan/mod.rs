//! The runs of an experiment as a TOML file: every combination of the values that are lists.

mod error;
mod parse;
mod seeds;

use std::{collections::BTreeMap, env, path::Path};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::run::{Mode, Parameters, heeds};

pub use error::PlanError;
pub use seeds::{ParseSeedsError, Seeds};

/// The environment variable that names the folder of recorded traces.
pub const RECORDINGS: &str = "TANDEM_TRACES";

/// The largest number of runs of a plan, which guards against too many lists.
pub const RUNS_MAX: u64 = 100_000;

/// The variant of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// The whole plan.
    #[default]
    Full,
    /// The plan with the values of its table `[short]`. It takes seconds and serves tests.
    Short,
}

/// Many runs: every combination of the values that are lists, with every seed. The keys are the
/// fields of [`Parameters`], each with a value or a list of values. A missing key has its default.
/// Further keys are `title`, `description` and `seeds`. The table `[short]` replaces values in
/// [`Variant::Short`]. The table `[recordings]` replaces values in [`Variant::Full`] if the
/// variable [`RECORDINGS`] is set. A table `[for.MODE]` replaces values for one mode.
///
/// ```
/// use tandem_experiments::plan::{Plan, Variant};
///
/// let text = "mode = ['mdt', 'mst']\nsize = ['100kB', '1MB']\nloss = '5%'\nseeds = '1..3'";
/// let plan = Plan::parse("example.toml".as_ref(), text, Variant::Full)?;
/// assert_eq!(plan.len(), 2 * 2 * 3);
/// # Ok::<(), tandem_experiments::plan::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    title: Option<String>,
    description: Option<String>,
    /// The values that are the same in every run.
    fixed: Map<String, Value>,
    axes: Vec<VariedKey>,
    of_modes: BTreeMap<Mode, OfMode>,
    seeds: Seeds,
    len: u64,
}

/// The values that replace those of the plan for one mode.
type OfMode = Map<String, Value>;

/// One varied key, with its values.
#[derive(Clone, Debug)]
struct VariedKey {
    key: String,
    values: Vec<Value>,
}

impl Plan {
    /// Reads a plan and checks every combination. `file` names it in messages; paths in it are
    /// relative to the file's folder.
    pub fn parse(file: &Path, text: &str, variant: Variant) -> Result<Self, PlanError> {
        parse::parse(file, text, variant, env::var_os(RECORDINGS).is_some())
    }

    /// The title of the plan.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// The description of the plan.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The keys with several values, in the order of the file.
    pub fn varied(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|axis| axis.key.as_str())
    }

    /// The seeds, the same for each combination.
    pub fn seeds(&self) -> Seeds {
        self.seeds
    }

    /// Number of runs, 1 to [`RUNS_MAX`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The number of combinations with every seed. It includes combinations that differ only in
    /// keys that their mode ignores.
    fn combinations(&self) -> u64 {
        let lists = self.axes.iter().map(|axis| axis.values.len() as u64);
        lists.product::<u64>() * self.seeds.count()
    }

    /// Always false, because a plan has at least one run.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Counts the runs.
    fn count(&mut self) {
        let seeds = self.seeds.count();
        let firsts = (0..self.combinations() / seeds).map(|number| number * seeds);
        self.len = firsts.filter(|number| self.run(*number).is_some()).count() as u64 * seeds;
    }

    /// Every run. The first key of the file varies slowest and the seed fastest. If a mode ignores
    /// a key, such as `tunnel_controller` without a tunnel, or has a value of its own for it, the
    /// mode only runs with the first value of the list.
    pub fn runs(&self) -> impl Iterator<Item = Parameters> {
        (0..self.combinations()).filter_map(|number| self.run(number))
    }

    /// The combination with this number, unless it repeats another one.
    fn run(&self, number: u64) -> Option<Parameters> {
        let mut rest = number / self.seeds.count();
        let mut keys = self.fixed.clone();
        let mut not_first = Vec::new();
        for VariedKey { key, values } in self.axes.iter().rev() {
            let count = values.len() as u64;
            let value = usize::try_from(rest % count).ok().and_then(|index| values.get(index));
            keys.insert(key.clone(), value.expect("a remainder is below its divisor").clone());
            if !rest.is_multiple_of(count) {
                not_first.push(key);
            }
            rest /= count;
        }
        let mode = keys.get("mode").map_or(Parameters::default().mode, |mode| {
            serde_json::from_value(mode.clone()).expect("each value was checked individually")
        });
        let own = self.of_modes.get(&mode);
        keys.extend(own.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        let mut parameters: Parameters = serde_json::from_value(Value::Object(keys))
            .expect("each value was checked individually");
        parameters.seed = self.seeds.first() + number % self.seeds.count();
        let is_alike =
            |key: &str| !heeds(mode, key) || own.is_some_and(|own| own.contains_key(key));
        let is_another = not_first.iter().any(|key| is_alike(key));
        (!is_another).then_some(parameters)
    }

    /// SHA-256 over all runs, in hexadecimal. Plans with the same hash are the same experiment.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for parameters in self.runs() {
            hash.update(canonical(&parameters).as_bytes());
            hash.update(b"\n");
        }
        format!("{:x}", hash.finalize())
    }
}

/// The canonical text of a run's parameters. Different parameters have different texts.
#[expect(clippy::missing_panics_doc, reason = "parameters can be written")]
pub fn canonical(parameters: &Parameters) -> String {
    serde_json::to_string(parameters).expect("parameters are texts and numbers")
}

#[cfg(test)]
mod tests;
