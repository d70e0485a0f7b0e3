//! Parses the text of a plan. Errors name the line.

use std::{collections::BTreeMap, ops::Range, path::Path};

use serde_json::{Map, Value};
use tandem_netem::SyntheticTrace;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{OfMode, Plan, PlanError, RUNS_MAX, Seeds, Variant, VariedKey};
use crate::{
    run::{self, Mode, Parameters},
    summary::fields,
};

/// Keys of a plan that are not parameters. `panel` describes a panel of a figure.
const OTHER_KEYS: [&str; 7] =
    ["title", "description", "seeds", "short", "recordings", "for", "panel"];

/// The keys among them that `[short]` and `[recordings]` may have too.
const INSTEAD_KEYS: [&str; 3] = ["title", "description", "seeds"];

/// Keys whose values are paths.
const PATHS: [&str; 2] = ["trace", "uplink_trace"];

/// Parses a plan. `has_recordings` says whether `[recordings]` counts.
pub(super) fn parse(
    file: &Path,
    text: &str,
    variant: Variant,
    has_recordings: bool,
) -> Result<Plan, PlanError> {
    let reader = PlanReader { file, text, defaults: defaults() };
    let document = DeTable::parse(text).map_err(|error| PlanError::Syntax {
        file: file.to_owned(),
        line: reader.line(&error.span().unwrap_or_default()),
        reason: error.message().replace('\n', "; "),
    })?;
    let document = document.get_ref();
    let mut entries = reader.entries(document, &OTHER_KEYS)?;
    if let Some(short) = document.get("short") {
        let short = reader.entries(reader.table("short", short)?, &INSTEAD_KEYS)?;
        if variant == Variant::Short {
            entries.override_with(short);
        }
    }
    if let Some(recordings) = document.get("recordings") {
        let table = reader.table("recordings", recordings)?;
        if variant == Variant::Full && has_recordings {
            entries.override_with(reader.entries(table, &INSTEAD_KEYS)?);
        }
    }
    let of_modes = match document.get("for") {
        Some(tables) => reader.of_modes(reader.table("for", tables)?)?,
        None => BTreeMap::new(),
    };
    reader.plan(entries, of_modes)
}

/// The fields of a run, with their defaults.
fn defaults() -> Map<String, Value> {
    let defaults = serde_json::to_value(Parameters::default());
    let Ok(Value::Object(mut defaults)) = defaults else {
        unreachable!("parameters are a struct of texts and numbers");
    };
    defaults.remove("seed"); // a plan has `seeds`
    defaults
}

/// The entries of a table of a plan. Each value is checked individually.
#[derive(Default)]
struct Entries {
    title: Option<String>,
    description: Option<String>,
    seeds: Option<Seeds>,
    parameters: BTreeMap<String, PlanEntry>,
}

/// One parameter.
struct PlanEntry {
    /// Its position in the text.
    at: Range<usize>,
    values: Vec<Value>,
    is_list: bool,
}

impl Entries {
    /// Replaces values. A key keeps its place in the order of the plan.
    fn override_with(&mut self, short: Self) {
        self.title = short.title.or(self.title.take());
        self.description = short.description.or(self.description.take());
        self.seeds = short.seeds.or(self.seeds);
        for (key, mut entry) in short.parameters {
            if let Some(full) = self.parameters.get(&key) {
                entry.at = full.at.clone();
            }
            self.parameters.insert(key, entry);
        }
    }
}

struct PlanReader<'a> {
    file: &'a Path,
    text: &'a str,
    defaults: Map<String, Value>,
}

impl PlanReader<'_> {
    fn entries(&self, table: &DeTable<'_>, others: &[&str]) -> Result<Entries, PlanError> {
        let mut entries = Entries::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            match name {
                "title" if others.contains(&name) => {
                    entries.title = Some(self.text_of(name, value)?);
                }
                "description" if others.contains(&name) => {
                    entries.description = Some(self.text_of(name, value)?);
                }
                "seeds" => entries.seeds = Some(self.seeds(value)?),
                _ if others.contains(&name) => {}
                _ if self.defaults.contains_key(name) => {
                    let entry = self.entry(name, key.span(), value)?;
                    entries.parameters.insert(name.to_owned(), entry);
                }
                _ => return Err(self.unknown_key(key.span(), name, others)),
            }
        }
        Ok(entries)
    }

    fn table<'t, 'd>(
        &self,
        key: &str,
        value: &'t Spanned<DeValue<'d>>,
    ) -> Result<&'t DeTable<'d>, PlanError> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.value_error(key, value, &format!("allowed: a table, [{key}]"))),
        }
    }

    /// The values that replace those of the plan for modes. Each key has one value.
    fn of_modes(&self, tables: &DeTable<'_>) -> Result<BTreeMap<Mode, OfMode>, PlanError> {
        let mut of_modes = BTreeMap::new();
        for (name, table) in tables {
            let mode = name.get_ref().parse::<Mode>();
            let mode = mode.map_err(|error| self.value_error("for", table, &error.to_string()))?;
            let mut of_mode = OfMode::new();
            for (key, value) in self.table(name.get_ref(), table)? {
                let at = key.span();
                let key = key.get_ref().as_ref();
                if key == "mode" || !self.defaults.contains_key(key) {
                    return Err(self.unknown_key(at, key, &[]));
                }
                let PlanEntry { values, is_list, .. } = self.entry(key, at, value)?;
                if is_list {
                    return Err(self.value_error(key, value, "allowed: one value for one mode"));
                }
                of_mode.extend(values.into_iter().map(|value| (key.to_owned(), value)));
            }
            of_modes.insert(mode, of_mode);
        }
        Ok(of_modes)
    }

    fn unknown_key(&self, at: Range<usize>, key: &str, others: &[&str]) -> PlanError {
        let allowed = others.iter().copied().chain(self.defaults.keys().map(String::as_str));
        PlanError::UnknownKey {
            file: self.file.to_owned(),
            line: self.line(&at),
            key: key.to_owned(),
            allowed: allowed.collect::<Vec<_>>().join(", "),
        }
    }

    fn text_of(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<String, PlanError> {
        let text = value.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| self.value_error(key, value, "allowed: a text"))
    }

    fn seeds(&self, value: &Spanned<DeValue<'_>>) -> Result<Seeds, PlanError> {
        let seeds = match json(value.get_ref()) {
            Value::String(text) => text.parse::<Seeds>(),
            other => other.to_string().parse(),
        };
        seeds.map_err(|error| self.value_error("seeds", value, &error.to_string()))
    }

    fn entry(
        &self,
        key: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<PlanEntry, PlanError> {
        let (values, is_list) = match value.get_ref() {
            DeValue::Array(list) => (list.iter().collect(), true),
            _ => (vec![value], false),
        };
        if values.is_empty() {
            let (file, line) = (self.file.to_owned(), self.line(&at));
            return Err(PlanError::EmptyList { file, line, key: key.to_owned() });
        }
        let values = values.into_iter().map(|value| self.parameter(key, value));
        Ok(PlanEntry { at, values: values.collect::<Result<_, _>>()?, is_list })
    }

    /// Converts one value of one parameter to the form that a run has.
    fn parameter(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Value, PlanError> {
        let mut seen = json(value.get_ref());
        if let Value::String(path) = &seen
            && PATHS.contains(&key)
        {
            seen =
                Value::String(self.path(path).map_err(|why| self.value_error(key, value, &why))?);
        }
        let alone = Map::from_iter([(key.to_owned(), seen.clone())]);
        match serde_json::from_value::<Parameters>(Value::Object(alone)) {
            Ok(_) => Ok(seen),
            Err(error) => {
                let example = self.defaults.get(key).filter(|value| !value.is_null());
                let example = example.map(|value| format!("; for example {value}"));
                let reason = format!("{error}{}", example.unwrap_or_default());
                Err(self.value_error(key, value, &reason))
            }
        }
    }

    /// Resolves a path relative to the plan's folder. `$NAME/` at its start is an environment
    /// variable for data in another folder. It is not replaced here, so that results do not depend
    /// on that folder.
    fn path(&self, path: &str) -> Result<String, String> {
        if let Some(kind) = path.strip_prefix(SyntheticTrace::PREFIX) {
            return kind
                .parse::<SyntheticTrace>()
                .map(|_| path.to_owned())
                .map_err(|error| error.to_string());
        }
        if let Some((name, _)) = path.strip_prefix('$').and_then(|path| path.split_once('/')) {
            let is_set = std::env::var_os(name).is_some();
            return if is_set {
                Ok(path.to_owned())
            } else {
                Err(format!("the variable {name} is not set"))
            };
        }
        let folder = self.file.parent().unwrap_or(Path::new(""));
        Ok(folder.join(path).to_string_lossy().into_owned())
    }

    fn plan(&self, entries: Entries, of_modes: BTreeMap<Mode, OfMode>) -> Result<Plan, PlanError> {
        let Entries { title, description, seeds, parameters } = entries;
        let seeds = seeds.unwrap_or(Seeds::one(1));
        let mut in_order: Vec<_> = parameters.into_iter().collect();
        in_order.sort_by_key(|(_, entry)| entry.at.start);
        let (mut fixed, mut axes) = (Map::new(), Vec::new());
        let mut places = BTreeMap::new();
        let mut len = seeds.count();
        for (key, entry) in in_order {
            places.insert(key.clone(), entry.at);
            len = len.saturating_mul(entry.values.len() as u64);
            if entry.is_list {
                axes.push(VariedKey { key, values: entry.values });
            } else {
                fixed.extend(entry.values.into_iter().map(|value| (key.clone(), value)));
            }
        }
        if len > RUNS_MAX {
            return Err(PlanError::TooManyRuns { file: self.file.to_owned(), runs: len });
        }
        let mut plan = Plan { title, description, fixed, axes, of_modes, seeds, len };
        plan.count();
        self.check_combinations(&plan, &places)?;
        Ok(plan)
    }

    /// Checks that each combination can be run, before the first run.
    fn check_combinations(
        &self,
        plan: &Plan,
        places: &BTreeMap<String, Range<usize>>,
    ) -> Result<(), PlanError> {
        let step = usize::try_from(plan.seeds.count()).unwrap_or(usize::MAX);
        for parameters in plan.runs().step_by(step) {
            let Err(error) = run::check(&parameters) else { continue };
            let reason = error.to_string();
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let mut words = reason.split(|c| !is_word(c));
            let named = words.find_map(|word| places.get(word));
            let varied = plan.axes.first().and_then(|axis| places.get(&axis.key));
            let values = fields(&parameters);
            let shown = |key: &str| format!("{key} = {}", values.get(key).unwrap_or(&Value::Null));
            let varying: Vec<_> = plan.varied().map(shown).collect();
            return Err(PlanError::Impossible {
                file: self.file.to_owned(),
                line: named.or(varied).map_or(1, |at| self.line(at)),
                combination: if varying.is_empty() {
                    "every run".to_owned()
                } else {
                    varying.join(", ")
                },
                reason,
            });
        }
        Ok(())
    }

    fn value_error(&self, key: &str, value: &Spanned<DeValue<'_>>, reason: &str) -> PlanError {
        PlanError::Value {
            file: self.file.to_owned(),
            line: self.line(&value.span()),
            key: key.to_owned(),
            seen: self.text.get(value.span()).unwrap_or_default().trim().to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// The number, from 1, of the line at which a span begins.
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.get(..span.start).unwrap_or(self.text).matches('\n').count() + 1
    }
}

/// Converts a TOML value to JSON. Dates, and numbers beyond 64 bits, become texts, which no key
/// accepts.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::from),
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::from),
        DeValue::Boolean(yes) => Value::Bool(*yes),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(list) => list.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => {
            let entries = table.iter();
            entries.map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
    }
}
