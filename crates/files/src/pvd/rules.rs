//! The rules of a document (`proxy-match`): which targets its proxies take.

use serde_json::{Map, Value};
use tandem_node::client::rules::{ALL_PORTS, Action, Carries, HostMatch, Rule, is_kept_local};
use tandem_wire::StrangerText;

use super::proxies::Proxies;
use crate::rules::{domain, net, port_range};

/// Reads the rules. Those that are not understood are left out, as the draft's §4.1 demands: "Any destination rules
/// that include keys not known to the client, or values that cannot be parsed, MUST be ignored in their entirety."
pub(super) fn read(
    list: &[Value],
    proxies: &Proxies,
    left_out: &mut Vec<StrangerText>,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (rule, number) in list.iter().zip(1..) {
        match read_rule(rule, proxies) {
            Ok(Some(rule)) => {
                let is_local = |host: &HostMatch| match host {
                    HostMatch::Net(net) => is_kept_local(net),
                    HostMatch::Any | HostMatch::Name(_) | HostMatch::Domain(_) => false,
                };
                if rule.action == Action::Proxy && rule.hosts.iter().any(is_local) {
                    let reason = "private addresses stay outside of the tunnel unless a rule of yours says otherwise";
                    left_out.push(format!("rule {number}: {reason}").into());
                }
                rules.push(rule);
            }
            Ok(None) => {} // it is for proxies of others
            Err(reason) => left_out.push(format!("rule {number}: {reason}").into()),
        }
    }
    let Carries { tcp, udp } = proxies.takes_without_rule();
    if !tcp || !udp {
        let carries = Carries { tcp: !tcp, udp: !udp };
        rules.push(rule(Action::Direct, vec![HostMatch::Any], vec![ALL_PORTS], carries));
    }
    rules
}

fn rule(
    action: Action,
    hosts: Vec<HostMatch>,
    ports: Vec<std::ops::RangeInclusive<u16>>,
    carries: Carries,
) -> Rule {
    Rule { action, hosts, ports, carries }
}

/// Reads a rule. `None`: it names no proxy that this program uses, so that it matches nothing.
fn read_rule(value: &Value, proxies: &Proxies) -> Result<Option<Rule>, String> {
    let Value::Object(value) = value else { return Err("no object".to_owned()) };
    let known = ["proxies", "domains", "subnets", "ports"];
    if let Some(key) = value.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("its key {key} is not known"));
    }
    let identifiers = texts(value, "proxies")?.ok_or("it has no list proxies")?;
    // "If no listed proxy identifier is applicable, the rule MUST be treated as not matching".
    let (action, carries) = if identifiers.is_empty() {
        (Action::Direct, Carries::BOTH)
    } else {
        (Action::Proxy, proxies.carries(&identifiers))
    };
    if !carries.tcp && !carries.udp {
        return Ok(None);
    }
    let domains = entries(value, "domains", domain)?;
    let subnets = entries(value, "subnets", |text| net(text).map(HostMatch::Net))?;
    let hosts = match (domains, subnets) {
        (Some(_), Some(_)) => {
            return Err("it is for names and addresses at once, which takes a look-up".to_owned());
        }
        (Some(hosts), None) | (None, Some(hosts)) => hosts,
        (None, None) => vec![HostMatch::Any],
    };
    let ports = entries(value, "ports", port_range)?.unwrap_or_else(|| vec![ALL_PORTS]);
    Ok(Some(rule(action, hosts, ports, carries)))
}

/// The texts of a list, if there is one.
fn texts<'a>(rule: &'a Map<String, Value>, key: &str) -> Result<Option<Vec<&'a str>>, String> {
    let Some(value) = rule.get(key) else { return Ok(None) };
    let list = value.as_array().ok_or_else(|| format!("{key} is no list"))?;
    let texts = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
    texts.map(Some).ok_or_else(|| format!("{key} is no list of texts"))
}

/// The parsed entries of a list, if there is one. "Each destination property key's value MUST be an array with at least
/// one entry."
fn entries<T>(
    rule: &Map<String, Value>,
    key: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let Some(texts) = texts(rule, key)? else { return Ok(None) };
    if texts.is_empty() {
        return Err(format!("{key} is empty"));
    }
    let parse =
        |text: &str| parse(text).ok_or_else(|| format!("{text} in {key} is not understood"));
    texts.into_iter().map(parse).collect::<Result<_, _>>().map(Some)
}
