//! Parsing and formatting of decimal numbers with a unit, without floating point.

use crate::ParseUnitError;

/// The notation of one quantity.
pub(crate) struct Notation {
    /// The quantity's name, for messages.
    pub(crate) quantity: &'static str,
    /// An example of a valid text, for messages.
    pub(crate) example: &'static str,
    /// The base unit in the plural, for messages.
    pub(crate) base: &'static str,
    /// The range of valid values in words, for messages.
    pub(crate) range: &'static str,
    /// Each unit with its size in base units. The empty unit is a bare number.
    pub(crate) units: &'static [(&'static str, u64)],
}

impl Notation {
    /// Parses a text such as "1.5 Gbit/s" as a whole number of base units. The space is optional.
    pub(crate) fn parse(&self, text: &str) -> Result<u64, ParseUnitError> {
        let trimmed = text.trim();
        let number_len = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = trimmed.split_at(number_len.unwrap_or(trimmed.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if !is_digits(whole) || !is_digits(fraction) {
            return Err(ParseUnitError::NotANumber {
                seen: text.to_owned(),
                quantity: self.quantity,
                example: self.example,
            });
        }
        let unit = unit.trim_start();
        let Some(&(_, size)) = self.units.iter().find(|(name, _)| *name == unit) else {
            return Err(self.unknown_unit(unit));
        };
        let fraction = fraction.trim_end_matches('0');
        let scaled = scale(whole, fraction, size).ok_or_else(|| self.out_of_range(text))?;
        match scaled {
            Scaled::Exact(value) => Ok(value),
            Scaled::TooFine => {
                Err(ParseUnitError::TooFine { seen: text.to_owned(), base: self.base })
            }
        }
    }

    pub(crate) fn out_of_range(&self, text: &str) -> ParseUnitError {
        ParseUnitError::OutOfRange {
            seen: text.to_owned(),
            quantity: self.quantity,
            allowed: self.range,
        }
    }

    fn unknown_unit(&self, unit: &str) -> ParseUnitError {
        let named = self.units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty());
        ParseUnitError::UnknownUnit {
            seen: unit.to_owned(),
            quantity: self.quantity,
            allowed: named.collect::<Vec<_>>().join(", "),
        }
    }
}

enum Scaled {
    Exact(u64),
    TooFine,
}

/// Returns `whole.fraction` times `size`, or `None` if the product does not fit into 64 bits.
fn scale(whole: &str, fraction: &str, size: u64) -> Option<Scaled> {
    let whole: u64 = whole.parse().ok()?;
    let whole = whole.checked_mul(size)?;
    if fraction.is_empty() {
        return Some(Scaled::Exact(whole));
    }
    // 19 digits fit into 64 bits. More digits are refused, although a unit that is a power of two
    // could make the product whole in rare cases.
    let (Ok(numerator), Some(denominator)) =
        (fraction.parse::<u64>(), u32::try_from(fraction.len()).ok().and_then(power_of_ten))
    else {
        return Some(Scaled::TooFine);
    };
    let numerator = u128::from(numerator) * u128::from(size);
    if !numerator.is_multiple_of(u128::from(denominator)) {
        return Some(Scaled::TooFine);
    }
    let part = u64::try_from(numerator / u128::from(denominator)).ok()?;
    whole.checked_add(part).map(Scaled::Exact)
}

fn power_of_ten(exponent: u32) -> Option<u64> {
    10_u64.checked_pow(exponent)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Formats `value / size` as an exact decimal without trailing zeros. `size` is a power of ten.
pub(crate) fn format(value: u64, size: u64) -> String {
    let (whole, rest) = (value / size, value % size);
    if rest == 0 {
        return whole.to_string();
    }
    let width = usize::try_from(size.ilog10()).expect("a power of ten below 2^64 has 19 zeros");
    let text = format!("{whole}.{rest:0width$}");
    text.trim_end_matches('0').to_owned()
}
