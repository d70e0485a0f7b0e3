//! How long an origin, and proxies that serve the same site, take to answer strangers. The times must not tell an
//! origin
//! from a proxy.
//!
//! `cargo bench -p tandem --bench strangers`
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a benchmark fails"
)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

#[path = "../tests/site/place.rs"]
mod place;
#[path = "../tests/site/prober.rs"]
#[expect(dead_code, reason = "the tests of sites use the rest")]
mod prober;
#[path = "../tests/site/probes.rs"]
#[expect(dead_code, reason = "as above")]
mod probes;
#[path = "../tests/support/mod.rs"]
mod support;

use std::{net::SocketAddr, time::Duration};

use quinn::{ClientConfig, Connection, Endpoint};

use crate::{
    place::{SECRET, ca, runtime, scene, servers},
    prober::tls,
    probes::{connect, extended, headers},
};

/// Requests of each kind to each server.
const REQUESTS: usize = 2000;

async fn time(connection: &Connection, request: &[u8]) -> Duration {
    let start = std::time::Instant::now();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(request).await.unwrap();
    send.finish().unwrap();
    receive.read_to_end(1 << 20).await.unwrap();
    start.elapsed()
}

/// The median, and the mean of the middle half with its standard error, in microseconds.
fn summary(mut times: Vec<Duration>) -> (f64, f64, f64) {
    times.sort_unstable();
    let micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    let middle = &micros[micros.len() / 4..micros.len() * 3 / 4];
    #[expect(clippy::cast_precision_loss, reason = "there are a few thousand")]
    let number = middle.len() as f64;
    let mean = middle.iter().sum::<f64>() / number;
    let variance = middle.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / number;
    (micros[micros.len() / 2], mean, (variance / number).sqrt())
}

fn main() {
    let scene = scene();
    let (origin, proxies) = servers(&scene, "root");
    let ca = ca(&scene);
    let wrong = "Bearer fedcba9876543210fedcba";
    let path = "/.well-known/masque/udp/192.0.2.1/53/";
    let below = format!("/{SECRET}{path}");
    let with =
        |lines: Vec<(&str, &str)>, field: &str| headers(&[&lines[..], &[(field, wrong)]].concat());
    let requests = [
        (
            "GET /missing",
            headers(&[
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "a"),
                (":path", "/missing"),
            ]),
        ),
        ("connect-udp", headers(&extended("connect-udp", path))),
        ("connect-udp, wrong token", with(extended("connect-udp", path), "authorization")),
        (
            "connect-udp below the path, wrong token",
            with(extended("connect-udp", &below), "authorization"),
        ),
        ("CONNECT, wrong token", with(connect("192.0.2.1:443"), "proxy-authorization")),
    ];
    runtime().block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        for (name, request) in requests {
            let mut connections = Vec::new();
            for server in [&origin, &proxies[0].1, &proxies[1].1] {
                let config = ClientConfig::new(tls(&ca));
                let connecting = endpoint.connect_with(config, server.address, "localhost");
                connections.push((connecting.unwrap().await.unwrap(), Vec::new()));
            }
            for _ in 0..REQUESTS {
                for (connection, times) in &mut connections {
                    times.push(time(connection, &request).await);
                }
            }
            for (server, (_, times)) in
                ["origin", "tokens", "tokens and path"].iter().zip(connections)
            {
                let (median, mean, error) = summary(times);
                println!(
                    "{name}: {server}: median {median:.1}, middle half {mean:.2} ± {error:.2} µs"
                );
            }
        }
    });
}
