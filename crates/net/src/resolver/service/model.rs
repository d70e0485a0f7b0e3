//! An answer of a name server with HTTPS records, which is any bytes.
//!
//! However many records there are and whatever they say, there are few servers, each with few addresses and a port that
//! exists, in the order of their priorities. No address is tried twice, and the names that reach the log have no
//! characters that change a terminal.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hickory_proto::{op::Message, rr::Name};
use tandem_node::node::ServiceEndpoint;

use super::{ENDPOINTS_MAX, Records, combine, interpret, query_name};
use crate::resolver::ADDRESSES_MAX;

/// The port of the authority.
const PORT: u16 = 443;

/// Reads an answer. The first byte says what else is known of the name.
///
/// # Panics
///
/// A promise is broken.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
pub fn run(input: &[u8]) {
    let Some((flags, message)) = input.split_first() else { return };
    let Ok(message) = Message::from_vec(message) else { return };
    for query in &message.queries {
        check_query(query.name());
    }
    match interpret(&message.answers) {
        Records::Alias(target) => {
            assert!(!target.is_root(), "a name without a server is no alias");
            check_name(&target);
        }
        Records::Services(services) => {
            assert!(services.len() <= ENDPOINTS_MAX && services.len() <= message.answers.len());
            assert!(services.is_sorted_by_key(|service| service.priority));
            for service in &services {
                assert!(service.priority > 0, "{service:?} is an alias");
                assert_ne!(service.port, Some(0), "{service:?}");
                assert!(service.hints.len() <= ADDRESSES_MAX, "{service:?}");
                check_name(&service.target);
            }
            let endpoints = services.into_iter().map(|service| ServiceEndpoint {
                priority: service.priority,
                addresses: addresses(&service.hints, service.port.unwrap_or(PORT)),
                ech: service.ech,
            });
            check_combined(endpoints.collect(), *flags);
        }
    }
}

fn addresses(ips: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    ips.iter().map(|ip| (*ip, port).into()).collect()
}

/// Port prefixes lengthen a name, which may then be too long.
fn check_query(name: &Name) {
    assert_eq!(query_name(name.clone(), 443).as_ref(), Some(name));
    if let Some(prefixed) = query_name(name.clone(), 8443) {
        assert_eq!(prefixed.iter().count(), name.iter().count() + 2);
        assert_eq!(prefixed.is_fqdn(), name.is_fqdn());
    }
}

fn check_name(name: &Name) {
    let text = name.to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

fn check_combined(endpoints: Vec<ServiceEndpoint>, flags: u8) {
    let plain = (0..flags % 4).map(|last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last)));
    let Ok(all) = combine(endpoints, Ok(plain.collect()), PORT) else { return };
    assert!(!all.is_empty() && all.len() <= ENDPOINTS_MAX + 1);
    let mut known = Vec::new();
    for address in all.iter().flat_map(|endpoint| &endpoint.addresses) {
        assert!(!known.contains(address), "{address} is tried twice");
        known.push(*address);
    }
    assert!(all.iter().all(|endpoint| !endpoint.addresses.is_empty()), "{all:?}");
}
