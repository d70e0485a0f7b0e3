//! What an operator should know of a server's certificate: its names, its end, and its faults.

use std::{net::IpAddr, path::Path, time::Duration};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

const DAY: u64 = 24 * 60 * 60;

/// A certificate that ends within this time is warned of: two weeks, in which a person has time to
/// act.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * DAY);

/// A certificate with a short life is warned of only in the last part of it. A certificate for six
/// days would otherwise be warned of all the time.
const LAST_PART: u32 = 4;

/// What the operator learns about a certificate chain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChainReport {
    /// The names and the end of the server's certificate.
    pub(super) summary: String,
    /// What is wrong, and what clients will see.
    pub(super) warnings: Vec<String>,
}

/// Looks at a chain from `file`, with the server's certificate first. `None`: the certificate is so
/// unusual that it cannot be read, which TLS will report if it matters.
pub(super) fn inspect(
    chain: &[CertificateDer<'_>],
    file: &Path,
    now: ASN1Time,
) -> Option<ChainReport> {
    let file = file.display();
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    let names = names(&leaf);
    let mut warnings = Vec::new();
    if names.is_empty() {
        warnings.push(format!(
            "the certificate in {file} has no host name or IP address (subjectAltName); every client \
             refuses it, unless the client runs with --insecure; issue it for the server's name"
        ));
    }
    for (der, number) in chain.iter().zip(1..) {
        let Ok((_, certificate)) = X509Certificate::from_der(der) else { continue };
        let what = match number {
            1 => format!("the certificate in {file}"),
            number => format!("certificate {number} of the chain in {file}"),
        };
        warnings.extend(validity_warning(&certificate, &what, now));
    }
    let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
    let end = utc(leaf.validity().not_after);
    Some(ChainReport { summary: format!("certificate for {names}; valid until {end}"), warnings })
}

/// For how long, in seconds since 1970, and for which names a certificate is.
#[cfg(feature = "acme")]
#[derive(Debug)]
pub(crate) struct Validity {
    pub(crate) from: i64,
    pub(crate) until: i64,
    pub(crate) names: Vec<String>,
}

/// That of the first certificate in a file. `None`: there is none.
#[cfg(feature = "acme")]
pub(crate) fn life_of(file: &Path) -> Option<Validity> {
    let chain = super::pem::certificates(file).ok()?;
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    let validity = leaf.validity();
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Some(Validity { from, until, names: names(&leaf) })
}

/// The names for which clients accept a certificate. Clients ignore its common name.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names);
    names
        .filter_map(|name| match name {
            // A name could contain control characters, which must not reach the terminal.
            GeneralName::DNSName(name) => Some(name.escape_default().to_string()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn validity_warning(
    certificate: &X509Certificate<'_>,
    what: &str,
    now: ASN1Time,
) -> Option<String> {
    let validity = certificate.validity();
    let (start, end) = (validity.not_before, validity.not_after);
    let refused = "every client refuses it, unless the client runs with --insecure";
    if end < now {
        return Some(format!("{what} expired on {}; {refused}; renew it", utc(end)));
    }
    if now < start {
        let start = utc(start);
        return Some(format!(
            "{what} is not valid before {start}; until then {refused}; check this machine's clock"
        ));
    }
    let seconds = |from: ASN1Time, to: ASN1Time| {
        Duration::from_secs(u64::try_from(to.timestamp() - from.timestamp()).unwrap_or(0))
    };
    let left = seconds(now, end);
    let is_ending = left < EXPIRES_SOON.min(seconds(start, end) / LAST_PART);
    is_ending.then(|| {
        let left = match left.as_secs() / DAY {
            0 => "within a day".to_owned(),
            1 => "in 1 day".to_owned(),
            days => format!("in {days} days"),
        };
        format!("{what} expires on {}, {left}; renew it", utc(end))
    })
}

/// A time as people and other programs read it.
pub fn utc(time: ASN1Time) -> String {
    let time = time.to_datetime();
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};

    use super::*;

    fn at(year: i32, month: u8, day: u8) -> ASN1Time {
        ASN1Time::from_timestamp(date_time_ymd(year, month, day).unix_timestamp()).unwrap()
    }

    /// A certificate that is valid for the year 2025, or for six days of it.
    fn chain(names: &[&str], is_short: bool) -> Vec<CertificateDer<'static>> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "common.example");
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after =
            if is_short { date_time_ymd(2025, 1, 7) } else { date_time_ymd(2026, 1, 1) };
        vec![params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()]
    }

    fn report(chain: &[CertificateDer<'_>], now: ASN1Time) -> ChainReport {
        inspect(chain, Path::new("chain.pem"), now).unwrap()
    }

    #[test]
    fn names_and_the_end_are_told() {
        let chain = chain(&["p.example", "192.0.2.1", "2001:db8::1"], false);
        let summary =
            "certificate for p.example, 192.0.2.1, 2001:db8::1; valid until 2026-01-01 00:00 UTC";
        let expected = ChainReport { summary: summary.to_owned(), warnings: Vec::new() };
        assert_eq!(report(&chain, at(2025, 6, 1)), expected);
    }

    #[test]
    fn times_outside_of_the_validity_are_warned_of() {
        for (is_short, now, warning) in [
            (false, at(2024, 12, 31), Some("not valid before 2025-01-01 00:00 UTC")),
            (false, at(2025, 12, 17), None),
            (false, at(2025, 12, 19), Some("expires on 2026-01-01 00:00 UTC, in 13 days")),
            (false, at(2026, 1, 2), Some("expired on 2026-01-01")),
            (true, at(2025, 1, 5), None),
            (true, at(2025, 1, 6), Some("in 1 day;")),
        ] {
            let warnings = report(&chain(&["p.example"], is_short), now).warnings;
            let found = warnings.first().map_or("", String::as_str);
            assert_eq!(warnings.len(), usize::from(warning.is_some()), "{warnings:?}");
            assert!(found.contains(warning.unwrap_or_default()), "{found}");
        }
        let [old, new] = [true, false].map(|is_short| chain(&["p.example"], is_short).remove(0));
        let warnings = report(&[new, old], at(2025, 6, 1)).warnings;
        let expected = "certificate 2 of the chain in chain.pem expired on 2025-01-07";
        assert!(warnings[0].starts_with(expected), "{warnings:?}");
    }

    #[test]
    fn a_common_name_is_no_name() {
        let report = report(&chain(&[], false), at(2025, 6, 1));
        assert!(report.summary.starts_with("certificate for no name; "), "{report:?}");
        assert!(report.warnings[0].contains("subjectAltName"), "{report:?}");
    }
}
