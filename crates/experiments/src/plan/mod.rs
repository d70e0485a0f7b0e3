//! Which runs an experiment is made of, as a TOML file: every combination of what is a list.

mod error;
mod parse;
mod seeds;

use std::{collections::BTreeMap, env, path::Path};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::run::{Mode, Parameters, heeds};

pub use error::PlanError;
pub use seeds::{ParseSeedsError, Seeds};

/// The variable of the environment that names the folder of recorded traces.
pub const RECORDINGS: &str = "TANDEM_TRACES";

/// Most runs of a plan: a guard against a list too many.
pub const RUNS_MAX: u64 = 100_000;

/// Which of a plan's two sizes is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// What the plan says.
    #[default]
    Full,
    /// What its table `[short]` says instead, where it does: seconds, for tests.
    Short,
}

/// Many runs: every combination of the values that are lists, with every seed.
///
/// The keys are the fields of [`Parameters`], each with a value or a list of values; what is not
/// said has its default. Besides, there are `title`, `description` and `seeds`, and tables: `[short]`
/// with what [`Variant::Short`] has instead, `[recordings]` with what [`Variant::Full`] has instead
/// where [`RECORDINGS`] is set, and `[for.MODE]` with what one mode has instead.
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
    /// The same in every run.
    fixed: Map<String, Value>,
    axes: Vec<Axis>,
    of_modes: BTreeMap<Mode, OfMode>,
    seeds: Seeds,
    len: u64,
}

/// What one mode has instead.
type OfMode = Map<String, Value>;

/// One thing that varies.
#[derive(Clone, Debug)]
struct Axis {
    key: String,
    values: Vec<Value>,
}

impl Plan {
    /// Reads a plan and checks every combination. `file` names it in messages; paths in it are
    /// relative to the file's folder.
    pub fn parse(file: &Path, text: &str, variant: Variant) -> Result<Self, PlanError> {
        parse::parse(file, text, variant, env::var_os(RECORDINGS).is_some())
    }

    /// What the plan calls itself.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// What it is for.
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

    /// Every combination with every seed, those included that differ in nothing that their mode
    /// heeds.
    fn combinations(&self) -> u64 {
        let lists = self.axes.iter().map(|axis| axis.values.len() as u64);
        lists.product::<u64>() * self.seeds.count()
    }

    /// A plan has a run at least.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the number of runs.
    fn count(&mut self) {
        let seeds = self.seeds.count();
        let firsts = (0..self.combinations() / seeds).map(|number| number * seeds);
        self.len = firsts.filter(|number| self.run(*number).is_some()).count() as u64 * seeds;
    }

    /// Every run: the first key of the file varies slowest, the seed fastest. Of a list that makes
    /// no difference in a mode, such as `tunnel_controller` without a tunnel or what the mode has a
    /// value of its own for, that mode is run with the first value only.
    pub fn runs(&self) -> impl Iterator<Item = Parameters> {
        (0..self.combinations()).filter_map(|number| self.run(number))
    }

    /// The combination of this number, unless it is another one over again.
    fn run(&self, number: u64) -> Option<Parameters> {
        let mut rest = number / self.seeds.count();
        let mut keys = self.fixed.clone();
        let mut not_first = Vec::new();
        for Axis { key, values } in self.axes.iter().rev() {
            let count = values.len() as u64;
            let value = usize::try_from(rest % count).ok().and_then(|index| values.get(index));
            keys.insert(key.clone(), value.expect("a remainder is below its divisor").clone());
            if !rest.is_multiple_of(count) {
                not_first.push(key);
            }
            rest /= count;
        }
        let mode = keys.get("mode").map_or(Parameters::default().mode, |mode| {
            serde_json::from_value(mode.clone()).expect("each value was checked by itself")
        });
        let own = self.of_modes.get(&mode);
        keys.extend(own.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        let mut parameters: Parameters =
            serde_json::from_value(Value::Object(keys)).expect("each value was checked by itself");
        parameters.seed = self.seeds.first() + number % self.seeds.count();
        let is_alike =
            |key: &str| !heeds(mode, key) || own.is_some_and(|own| own.contains_key(key));
        let is_another = not_first.iter().any(|key| is_alike(key));
        (!is_another).then_some(parameters)
    }

    /// SHA-256 over all runs, in hexadecimal: plans with the same hash are the same experiment.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for parameters in self.runs() {
            hash.update(canonical(&parameters).as_bytes());
            hash.update(b"\n");
        }
        format!("{:x}", hash.finalize())
    }
}

/// The one text of a run: the same parameters have the same, others have another.
#[expect(clippy::missing_panics_doc, reason = "parameters can be written")]
pub fn canonical(parameters: &Parameters) -> String {
    serde_json::to_string(parameters).expect("parameters are texts and numbers")
}

#[cfg(test)]
mod tests;
