//! Numbers as people read them, on the page and in the terminal.

use std::collections::BTreeMap;

/// A rate in Mbit/s.
pub fn rate(mbps: f64) -> String {
    match mbps {
        0.0 => "0".to_owned(),
        _ if mbps < 1.0 => format!("{:.0} kbit/s", mbps * 1e3),
        _ if mbps < 1e3 => format!("{mbps:.1} Mbit/s"),
        _ => format!("{:.2} Gbit/s", mbps / 1e3),
    }
}

/// A number of bytes.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// A time in seconds.
pub fn ms(seconds: f64) -> String {
    match seconds * 1e3 {
        0.0 => "0 ms".to_owned(),
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{seconds:.0} s"),
    }
}

/// A longer time in seconds, such as an age.
pub fn age(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}

/// A share.
pub fn percent(ratio: f64) -> String {
    if ratio == 0.0 { "0 %".to_owned() } else { format!("{:.2} %", ratio * 100.0) }
}

/// A number with thin spaces between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// What was counted by cause, without what was not.
pub fn met(causes: &BTreeMap<String, u64>) -> String {
    let causes = causes.iter().filter(|(_, number)| **number > 0);
    let causes: Vec<_> =
        causes.map(|(name, number)| format!("{} {}", cause(name), count(*number))).collect();
    if causes.is_empty() { "nothing".to_owned() } else { causes.join(", ") }
}

/// A key as words.
pub fn cause(key: &str) -> String {
    key.replace('_', " ")
}

/// A number of so many parts of a unit.
pub fn round(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_a_unit() {
        let rates = [0.0, 0.0123, 5.25, 940.0, 2500.0].map(rate);
        assert_eq!(rates, ["0", "12 kbit/s", "5.2 Mbit/s", "940.0 Mbit/s", "2.50 Gbit/s"]);
        let sizes = [0, 999, 1_500, 2_500_000, 3_210_000_000].map(bytes);
        assert_eq!(sizes, ["0 B", "999 B", "2 kB", "2.5 MB", "3.21 GB"]);
        assert_eq!([0.0, 0.0042, 0.25, 12.0].map(ms), ["0 ms", "4.2 ms", "250 ms", "12 s"]);
        let ages = [0.0, 119.4, 600.0, 9_000.0, 200_000.0].map(age);
        assert_eq!(ages, ["0 s", "119 s", "10 min", "2.5 h", "2.3 d"]);
        assert_eq!([0.0, 0.0123].map(percent), ["0 %", "1.23 %"]);
        assert_eq!(
            [7, 1_000, 12_345_678].map(count),
            ["7", "1\u{202f}000", "12\u{202f}345\u{202f}678"]
        );
    }
}
