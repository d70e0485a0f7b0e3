use std::net::{Ipv4Addr, Ipv6Addr};

use crate::StrangerText;

/// The reason why a path does not identify a target ([RFC 9298 §3]).
///
/// [RFC 9298 §3]: https://www.rfc-editor.org/rfc/rfc9298#section-3
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The result of percent-decoding is not UTF-8.
    #[error("{0:?} is not percent-encoded UTF-8")]
    Utf8(StrangerText),
    /// The host is empty.
    #[error("the target host is empty")]
    HostEmpty,
    /// The host is longer than the longest DNS name.
    #[error("the target host has {0} characters; at most {DNS_NAME_LEN_MAX} are allowed")]
    HostTooLong(usize),
    /// An IPv6 address has a zone identifier.
    #[error("target host {0:?} has a zone identifier, which is not allowed")]
    HostZone(StrangerText),
    /// The host has a colon or bracket but is not an IPv6 address.
    #[error("target host {0:?} is not an IPv6 address; write it without brackets")]
    HostIpv6(StrangerText),
    /// The host ends in a number but is not an IPv4 address.
    #[error("target host {0:?} is not an IPv4 address in dotted decimal")]
    HostIpv4(StrangerText),
    /// A label of the name is empty or too long.
    #[error("target host {0:?} has a label that is empty or has more than 63 characters")]
    HostLabel(StrangerText),
    /// The host has a character that is not allowed in a DNS name.
    #[error("target host {host:?} has the character {character:?}")]
    HostCharacter {
        /// The host.
        host: StrangerText,
        /// The character.
        character: char,
    },
    /// The port is not a number from 1 to 65535.
    #[error("target port {0:?} is not a number from 1 to 65535")]
    Port(StrangerText),
}

/// The length of the longest DNS name without its trailing dot ([RFC 1035 §2.3.4]: 255 bytes in
/// wire format).
///
/// [RFC 1035 §2.3.4]: https://www.rfc-editor.org/rfc/rfc1035#section-2.3.4
const DNS_NAME_LEN_MAX: usize = 253;

/// The length of the longest label of a DNS name ([RFC 1035 §2.3.4]).
///
/// [RFC 1035 §2.3.4]: https://www.rfc-editor.org/rfc/rfc1035#section-2.3.4
const DNS_LABEL_LEN_MAX: usize = 63;

/// Checks a target's host ([RFC 9298 §3]). It is an IP address without brackets and zone
/// identifier, or a DNS name in ASCII, in which underscores and one dot at the end are allowed.
///
/// Names that end in a number are refused, because resolvers differ in the interpretation of
/// "127.1" and "0x7f.0.0.1".
///
/// # Errors
///
/// The host is empty, or neither an IP address nor a DNS name.
///
/// [RFC 9298 §3]: https://www.rfc-editor.org/rfc/rfc9298#section-3
pub fn check_host(host: &str) -> Result<(), TargetError> {
    if host.is_empty() {
        return Err(TargetError::HostEmpty);
    }
    if host.parse::<Ipv4Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    // RFC 9298 §3: "Note that IPv6 scoped addressing zone identifiers are not supported."
    match host.split_once('%') {
        Some((address, _)) if address.parse::<Ipv6Addr>().is_ok() => {
            return Err(TargetError::HostZone(host.into()));
        }
        Some(_) | None => {}
    }
    if host.contains([':', '[', ']']) {
        return Err(TargetError::HostIpv6(host.into()));
    }
    check_name(host)
}

fn check_name(host: &str) -> Result<(), TargetError> {
    let is_name_character = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if let Some(character) = host.chars().find(|&c| !is_name_character(c)) {
        return Err(TargetError::HostCharacter { host: host.into(), character });
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > DNS_NAME_LEN_MAX {
        return Err(TargetError::HostTooLong(name.len()));
    }
    if name.split('.').any(|label| label.is_empty() || label.len() > DNS_LABEL_LEN_MAX) {
        return Err(TargetError::HostLabel(host.into()));
    }
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err(TargetError::HostIpv4(host.into()));
    }
    Ok(())
}

/// Returns whether resolvers may interpret the label as a part of an IPv4 address, in decimal,
/// octal or hexadecimal notation.
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Parses the authority of a CONNECT request, which names its target ([RFC 9110 §9.3.6]). Returns the
/// host, an IPv6 address without brackets, and the port.
///
/// # Errors
///
/// The host or the port is malformed or missing.
///
/// [RFC 9110 §9.3.6]: https://www.rfc-editor.org/rfc/rfc9110#section-9.3.6
pub fn parse_target_authority(authority: &str) -> Result<(String, u16), TargetError> {
    let (host, port) = authority
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains(':') || host.ends_with(']'))
        .ok_or_else(|| TargetError::Port(StrangerText::default()))?;
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match address {
        Some(address) if address.parse::<Ipv6Addr>().is_err() => {
            return Err(TargetError::HostIpv6(host.into()));
        }
        Some(address) => address,
        None => host,
    };
    check_host(host)?;
    Ok((host.to_owned(), parse_port(port)?))
}

/// Parses a port. RFC 9298 §3: `target_port = 1*5DIGIT`, and it "MUST represent an integer between
/// 1 and 65535 inclusive".
pub(super) fn parse_port(text: &str) -> Result<u16, TargetError> {
    let is_well_formed = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port @ 1..) if is_well_formed => Ok(port),
        Ok(_) | Err(_) => Err(TargetError::Port(text.into())),
    }
}
