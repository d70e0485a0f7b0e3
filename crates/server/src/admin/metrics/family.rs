//! Families of metrics, which are the same of each node.

use std::borrow::Cow;

/// Metrics of one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// The name, with the ending `_total` of counters.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    /// The names of the labels that the samples differ in.
    pub labels: Vec<&'static str>,
    pub(super) samples: Vec<MetricSample>,
}

/// What a number means, and so how the numbers of several nodes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It grows and falls.
    Gauge,
    /// A gauge of the largest number so far.
    Peak,
}

/// One number, with a value for each label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricSample {
    pub(super) labels: Vec<Cow<'static, str>>,
    pub(super) value: Value,
}

impl MetricSample {
    pub(crate) fn of<const N: usize>(labels: [String; N], value: u64) -> Self {
        Self { labels: labels.map(Cow::Owned).to_vec(), value: Value::Whole(value) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    Fraction(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Fraction(value)
    }
}

impl Family {
    /// One number without a label.
    pub(super) fn one(
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        value: impl Into<Value>,
    ) -> Self {
        let samples = vec![MetricSample { labels: Vec::new(), value: value.into() }];
        Self { name, help, kind, labels: Vec::new(), samples }
    }

    /// Numbers with several labels.
    pub(crate) fn labelled<const N: usize>(
        kind: MetricKind,
        (name, help): (&'static str, &'static str),
        labels: [&'static str; N],
        samples: Vec<MetricSample>,
    ) -> Self {
        Self { name, help, kind, labels: labels.to_vec(), samples }
    }

    /// A counter.
    pub(in crate::admin) fn counter(
        name: &'static str,
        help: &'static str,
        value: impl Into<Value>,
    ) -> Self {
        Self::one(MetricKind::Counter, name, help, value)
    }

    /// A gauge.
    pub(crate) fn gauge(name: &'static str, help: &'static str, value: impl Into<Value>) -> Self {
        Self::one(MetricKind::Gauge, name, help, value)
    }

    /// Numbers with different values of a label.
    pub(in crate::admin) fn by<V: Into<Value>>(
        mut self,
        label: &'static str,
        samples: impl IntoIterator<Item = (impl Into<Cow<'static, str>>, V)>,
    ) -> Self {
        let sample = |(label, value): (_, V)| MetricSample {
            labels: vec![Into::<Cow<'static, str>>::into(label)],
            value: value.into(),
        };
        self.labels = vec![label];
        self.samples = samples.into_iter().map(sample).collect();
        self
    }

    /// A counter with a label, such as a cause.
    pub(in crate::admin) fn counters<const N: usize>(
        (name, label): (&'static str, &'static str),
        help: &'static str,
        samples: [(&'static str, u64); N],
    ) -> Self {
        Self::counter(name, help, 0_u64).by(label, samples)
    }

    /// Adds the numbers of another node.
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, sample) in self.samples.iter_mut().zip(&other.samples) {
            sum.value = match (self.kind, sum.value, sample.value) {
                (MetricKind::Peak, Value::Whole(a), Value::Whole(b)) => Value::Whole(a.max(b)),
                (_, Value::Whole(a), Value::Whole(b)) => Value::Whole(a.saturating_add(b)),
                (_, Value::Fraction(a), Value::Fraction(b)) => Value::Fraction(a + b),
                (_, a, _) => a,
            };
        }
    }
}

#[cfg(test)]
impl Family {
    /// The row of the table in the documentation: name, type, label with its values, and meaning.
    pub(in crate::admin) fn row(&self) -> [String; 4] {
        let kind = if self.kind == MetricKind::Counter { "counter" } else { "gauge" };
        let labels: Vec<_> = self.labels.iter().zip(0..).map(|it| self.label_in_row(it)).collect();
        [self.name.to_owned(), kind.to_owned(), labels.join("; "), self.help.to_owned()]
    }

    /// A label with its values, if these are a closed set.
    fn label_in_row(&self, (label, place): (&&str, usize)) -> String {
        let mut values: Vec<_> = self.samples.iter().map(|it| &it.labels[place]).collect();
        values.sort_by_key(|value| self.samples.iter().position(|it| it.labels[place] == **value));
        values.dedup();
        let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        let is_closed = !["version", "user", "hop"].contains(label);
        let values = if is_closed { format!(": {}", values.join(", ")) } else { String::new() };
        format!("`{label}`{values}")
    }

    /// The number of series.
    pub(in crate::admin) const fn len(&self) -> usize {
        self.samples.len()
    }
}
