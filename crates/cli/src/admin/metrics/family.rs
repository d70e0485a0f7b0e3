//! Families of metrics, which are the same of each node.

use std::borrow::Cow;

/// Metrics of one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// The name, with the ending `_total` of counters.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// The name of the label that the samples differ in.
    pub(crate) label: Option<&'static str>,
    pub(super) samples: Vec<Sample>,
}

/// What a number means, and so how the numbers of several nodes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only grows.
    Counter,
    /// It grows and falls.
    Gauge,
    /// A gauge of the largest number so far.
    Peak,
}

/// One number. The value of the label is empty without a label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) label: Cow<'static, str>,
    pub(super) value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
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
        kind: Kind,
        name: &'static str,
        help: &'static str,
        value: impl Into<Value>,
    ) -> Self {
        let samples = vec![Sample { label: Cow::Borrowed(""), value: value.into() }];
        Self { name, help, kind, label: None, samples }
    }

    /// A counter.
    pub(super) fn counter(name: &'static str, help: &'static str, value: impl Into<Value>) -> Self {
        Self::one(Kind::Counter, name, help, value)
    }

    /// A gauge.
    pub(super) fn gauge(name: &'static str, help: &'static str, value: impl Into<Value>) -> Self {
        Self::one(Kind::Gauge, name, help, value)
    }

    /// Numbers with different values of a label.
    pub(super) fn by<V: Into<Value>>(
        mut self,
        label: &'static str,
        samples: impl IntoIterator<Item = (impl Into<Cow<'static, str>>, V)>,
    ) -> Self {
        let sample = |(label, value): (_, V)| Sample {
            label: Into::<Cow<'static, str>>::into(label),
            value: value.into(),
        };
        self.label = Some(label);
        self.samples = samples.into_iter().map(sample).collect();
        self
    }

    /// A counter with a label, such as a cause.
    pub(super) fn counters<const N: usize>(
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
                (Kind::Peak, Value::Whole(a), Value::Whole(b)) => Value::Whole(a.max(b)),
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
    pub(super) fn row(&self) -> [String; 4] {
        let kind = if self.kind == Kind::Counter { "counter" } else { "gauge" };
        let label = self.label.map(|label| {
            let values: Vec<_> = self.samples.iter().map(|it| format!("`{}`", it.label)).collect();
            let is_closed = label != "version" && label != "user";
            let values = if is_closed { format!(": {}", values.join(", ")) } else { String::new() };
            format!("`{label}`{values}")
        });
        let label = label.unwrap_or_default();
        [self.name.to_owned(), kind.to_owned(), label, self.help.to_owned()]
    }
}
