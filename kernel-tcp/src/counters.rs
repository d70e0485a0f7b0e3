//! What the BPF programs have counted.

use std::fmt;

use serde::Serialize;

/// Totals over all connections since the programs were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Authentic PEP-ACKs, which were used.
    pub pep_acks_used: u64,
    /// PEP-ACKs with another MAC than that of the key. Like all that follow, they have changed nothing.
    pub pep_acks_wrong_mac: u64,
    /// PEP-ACKs with the identifier of another PEP.
    pub pep_acks_other_pep: u64,
    /// PEP-ACKs whose number is not above the last one.
    pub pep_acks_replayed: u64,
    /// PEP-ACKs of data that was never sent.
    pub pep_acks_implausible: u64,
    /// PEP-ACKs for connections that do not exist, or have another congestion control.
    pub pep_acks_no_connection: u64,
    /// Segments that were lost before they passed the PEP.
    pub lost_wired: u64,
    /// Segments that had passed the PEP.
    pub lost_access: u64,
    /// Segments that were lost while no PEP was heard.
    pub lost_one_domain: u64,
    /// How often a fair window was reduced.
    pub reductions: u64,
    /// How often more than 10 % of a round was lost behind the PEP.
    pub access_overloads: u64,
    /// How often a connection began to use PEP-ACKs.
    pub to_two_domains: u64,
    /// How often a PEP fell silent, so that a connection went on without it.
    pub to_one_domain: u64,
}

impl Counters {
    /// The number of counters, each of which has a place in the map of the programs.
    pub const LEN: usize = 13;

    /// The counters in the order of `enum counter` in `bpf/connection.h`.
    pub fn new(values: [u64; Self::LEN]) -> Self {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        // The fields are evaluated in this order.
        Self {
            pep_acks_used: next(),
            pep_acks_wrong_mac: next(),
            pep_acks_other_pep: next(),
            pep_acks_replayed: next(),
            pep_acks_implausible: next(),
            pep_acks_no_connection: next(),
            lost_wired: next(),
            lost_access: next(),
            lost_one_domain: next(),
            reductions: next(),
            access_overloads: next(),
            to_two_domains: next(),
            to_one_domain: next(),
        }
    }
}

/// For people.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pep_acks_used, pep_acks_wrong_mac, pep_acks_other_pep, .. } = self;
        let Self { pep_acks_replayed, pep_acks_implausible, pep_acks_no_connection, .. } = self;
        let Self { lost_wired, lost_access, lost_one_domain, reductions, .. } = self;
        let Self { access_overloads, to_two_domains, to_one_domain, .. } = self;
        writeln!(f, "PEP-ACKs: {pep_acks_used} used")?;
        writeln!(
            f,
            "  refused: {pep_acks_wrong_mac} with a wrong MAC, {pep_acks_other_pep} of another PEP, \
             {pep_acks_replayed} replayed, {pep_acks_implausible} of data that was never sent"
        )?;
        writeln!(f, "  {pep_acks_no_connection} for no connection with this congestion control")?;
        writeln!(
            f,
            "lost segments: {lost_wired} before the PEP, {lost_access} behind it, \
             {lost_one_domain} while no PEP was heard"
        )?;
        writeln!(
            f,
            "windows reduced: {reductions}; too much lost behind the PEP: {access_overloads}"
        )?;
        write!(f, "a PEP was heard {to_two_domains} times, and fell silent {to_one_domain} times")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_order_is_that_of_the_programs() {
        let header = include_str!("../bpf/connection.h");
        let (_, list) = header.split_once("enum counter {").unwrap();
        let (list, _) = list.split_once("COUNTERS").unwrap();
        let names: Vec<String> = list
            .split(',')
            .map(|name| name.trim().to_lowercase())
            .filter(|n| !n.is_empty())
            .collect();
        let values: [u64; Counters::LEN] = std::array::from_fn(|at| u64::try_from(at).unwrap());
        let json = serde_json::to_string(&Counters::new(values)).unwrap();
        let by_name: BTreeMap<String, u64> = serde_json::from_str(&json).unwrap();
        assert_eq!(names.len(), Counters::LEN);
        for (name, value) in names.iter().zip(values) {
            assert_eq!(by_name.get(name), Some(&value), "{name}");
        }
    }
}
