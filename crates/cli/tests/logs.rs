//! Tests of what the programs log.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{collections::BTreeSet, fmt, net::UdpSocket};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use crate::support::{Scene, Server, comes_back, echo};

/// A server that logs JSON with all details that have no packets.
fn logging(scene: &Scene, line: &str) -> Server {
    scene.serve(&format!("{line} --listen 127.0.0.1:0 -v --log-format json"))
}

/// The lines of a log, each of which is an object without a key that comes twice.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| Value::Object(serde_json::from_str::<Unique>(line).unwrap().0);
    log.lines().map(object).collect()
}

/// An object whose keys differ. Usual readers of JSON keep the last value of a key and say nothing.
struct Unique(Map<String, Value>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
                let mut object = Map::new();
                while let Some((key, value)) = entries.next_entry::<String, Value>()? {
                    if object.insert(key.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("the key {key:?} comes twice")));
                    }
                }
                Ok(Unique(object))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// The identifiers of requests in a log.
fn trace_ids(log: &[Value], has: impl Fn(&Value) -> bool) -> BTreeSet<String> {
    let lines = log.iter().filter(|line| has(line));
    lines.filter_map(|line| line["trace_id"].as_str()).map(str::to_owned).collect()
}

#[test]
fn each_server_knows_only_its_own_requests_and_the_client_knows_all() {
    let scene = Scene::new();
    scene.write_noise("root/file", 300_000);
    let proxy = "proxy --allow-target 127.0.0.0/8 --write-ca";
    let origin = logging(&scene, "origin --root root --write-ca origin.pem");
    let near = logging(&scene, &format!("{proxy} near.pem"));
    let far = logging(&scene, &format!("{proxy} far.pem"));
    let servers = [&near, &far, &origin].map(|server| server.address.to_string());
    let line = format!(
        "get https://{}/file --ca origin.pem --via https://{} --ca near.pem --via https://{} --ca far.pem -o out --mode rmdt \
         --quiet -vv --trace-requests --log-format json",
        origin.address, near.address, far.address
    );
    let got = scene.run(&line);
    got.succeeds();
    let client = objects(&got.stderr());
    let mut known = BTreeSet::new();
    for (server, address) in [near, far, origin].into_iter().zip(servers) {
        let log = objects(&server.stop().1);
        let here = trace_ids(&log, |_| true);
        assert_eq!(here.len(), 1, "{address}: {log:?}");
        let sent =
            trace_ids(&client, |it| it["peer"] == *address && it["message"] == "request sent");
        let ended =
            trace_ids(&client, |it| it["peer"] == *address && it["message"] == "request ended");
        assert_eq!((&sent, &ended), (&here, &here), "{address}: {client:?}");
        known.extend(here);
        let is_end =
            |line: &&Value| line["message"] == "request ended" || line["message"] == "flow closed";
        let end = log.iter().find(is_end).unwrap_or_else(|| panic!("no end in {log:?}"));
        assert!(end["to_client_bytes"].as_u64().unwrap() >= 300_000, "{end}");
        assert!(end["active_s"].as_f64().unwrap() < 20.0 && end["reason"].is_string(), "{end}");
    }
    assert_eq!(known.len(), 3, "no two requests have the same identifier");
    assert_eq!(trace_ids(&client, |_| true), known);
}

#[test]
fn the_operator_chooses_what_the_log_says_of_flows() {
    let scene = Scene::new();
    let target = echo();
    for (flag, lines, has_destination) in [
        ("", 2, false),
        ("--log-flows users", 2, false),
        ("--log-flows targets", 2, true),
        ("--log-flows none", 0, false),
    ] {
        let proxy = scene.serve(&format!(
            "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca ca.pem {flag} \
             --log-format json"
        ));
        let via = format!("--via https://{} --ca ca.pem", proxy.address);
        let client = scene.serve(&format!("client {via} --udp 127.0.0.1:0={target}"));
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(comes_back(&program, &client), "{flag}");
        assert!(client.stop().0.success());
        let text = proxy.stop().1;
        let log = objects(&text);
        let of_flows: Vec<_> = log
            .iter()
            .filter(|line| line["message"].as_str().unwrap().starts_with("flow "))
            .collect();
        assert_eq!(of_flows.len(), lines, "{flag}: {log:?}");
        let destination = if has_destination { json!(target.to_string()) } else { Value::Null };
        for line in of_flows {
            assert_eq!((&line["destination"], &line["user"]), (&destination, &json!("anyone")));
            assert!(line["target"].as_str().unwrap().starts_with("tandem_node"), "{line}");
        }
        assert_eq!(text.contains(&target.to_string()), has_destination, "{flag}: {text}");
    }
}

#[test]
fn without_the_flag_nothing_is_identified() {
    let scene = Scene::new();
    scene.write_noise("root/file", 1000);
    let origin = logging(&scene, "origin --root root --write-ca origin.pem");
    let line =
        format!("get https://{}/file --ca origin.pem -o out -vv --log-format json", origin.address);
    let got = scene.run(&line);
    assert_eq!(trace_ids(&objects(&got.stderr()), |_| true), BTreeSet::new());
    assert_eq!(trace_ids(&objects(&origin.stop().1), |_| true), BTreeSet::new());
}

#[test]
fn an_error_is_an_object_too() {
    let got =
        Scene::new().run("get https://127.0.0.1:1/ -o out --quiet --log-format json --timeout 1s");
    let log = objects(&got.stderr());
    let error = log.last().unwrap();
    assert_eq!((got.code(), error["level"].as_str()), (Some(1), Some("ERROR")), "{error}");
}
