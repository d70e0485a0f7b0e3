//! Tests of the client, the relay, the demo and the files for packagers.

mod support;

use std::{fs, net::UdpSocket, path::Path, time::Duration};

use serde_json::Value;

use crate::support::{Scene, Server, sha256};

#[test]
fn a_client_carries_another_tunnel() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 300_000);
    let origin = scene.origin();
    let (near, far) = (scene.proxy("near.pem"), scene.proxy("far.pem"));
    let client = scene.serve(&format!(
        "client --via https://{} --ca near.pem --udp 127.0.0.1:0={}",
        near.address, far.address
    ));
    scene
        .run(&format!(
            "get https://{}/file --via https://{} --ca far.pem --ca origin.pem -o out",
            origin.address, client.address
        ))
        .succeeds();
    assert_eq!(sha256(&scene.path("out")), sha256(&file));
    let (status, said) = client.stop();
    assert!(status.success(), "{said}");
}

#[test]
fn a_proxy_shares_the_open_files_that_it_may_have_and_says_when_they_are_few() {
    let scene = Scene::new();
    let line =
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --threads 1";
    let tandem = scene.command(line.split_whitespace());
    let mut limited = scene.other_program("/bin/sh");
    limited.args(["-c", "ulimit -n 116 && exec \"$@\"", "sh"]).arg(tandem.get_program());
    limited.args(tandem.get_args());
    let proxy = Server::start(limited, line);
    // 16 of the 116 are at the proxy's address, 64 are kept for other files, and a quarter of the rest for names.
    let advice = "open files: at most 116, so at most 27 flows at a time; set LimitNOFILE= ";
    assert!(proxy.said.contains(advice), "{}", proxy.said);

    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let target_address = target.local_addr().unwrap();
    let client = scene.serve(&format!(
        "client --via https://{} --ca proxy.pem --udp 127.0.0.1:0={target_address}",
        proxy.address
    ));
    client.says("tunnel up"); // packets that wait for it are requested in no order
    let programs: Vec<_> = (0..10_u8)
        .map(|number| {
            let program = UdpSocket::bind("127.0.0.1:0").unwrap();
            program.connect(client.address).unwrap();
            program.send(&[number]).unwrap();
            program
        })
        .collect();
    // One connection may open a socket while it has less than a quarter as many as are free.
    let mut buffer = [0; 10];
    let mut arrived: Vec<_> = (0..6)
        .map(|_| {
            let (len, from) = target.recv_from(&mut buffer).unwrap();
            target.send_to(b"answer", from).unwrap();
            buffer[..len].to_vec()
        })
        .collect();
    arrived.sort();
    assert_eq!(arrived, [[0], [1], [2], [3], [4], [5]], "six flows were granted");
    programs[5].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(programs[5].recv(&mut buffer).unwrap(), 6);

    let (status, client_said) = client.stop();
    assert!(status.success(), "{client_said}");
    // The client says once why flows of this listener are refused.
    let refused =
        "status 503, the proxy allows no further flow at present (connection_limit_reached";
    assert_eq!(client_said.matches(refused).count(), 1, "{client_said}");
    let (status, said) = proxy.stop();
    assert!(status.success(), "{said}");
    assert_eq!(said.matches("has its share of the sockets").count(), 1, "{said}");
}

#[test]
fn a_relay_carries_both_ways_and_counts() {
    let scene = Scene::new();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let relay = scene.serve(&format!(
        "lab relay --listen 127.0.0.1:0 --to {} --delay 1ms",
        target.local_addr().unwrap()
    ));
    target.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = [0; 100];
    for name in ["one", "two"] {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.connect(relay.address).unwrap();
        client.send(name.as_bytes()).unwrap();
        let (len, from) = target.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], name.as_bytes());
        target.send_to(b"answer", from).unwrap();
        let len = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"answer", "to {name}");
    }
    let counters: Value = serde_json::from_str(&relay.stop_and_read()).unwrap();
    assert_eq!(counters["clients"], 2);
    assert_eq!(counters["to_target"]["delivered_bytes"], 2 * (3 + 28));
    assert_eq!(counters["to_client"]["delivered_packets"], 2);
}

#[test]
fn a_relay_follows_a_trace_and_refuses_an_invalid_one() {
    let scene = Scene::new();
    let trace = scene.write("fast.trace", "1\n");
    let broken = scene.write("broken.trace", "5\n3\n");
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = target.local_addr().unwrap();
    let line = |file: &Path| {
        format!("lab relay --listen 127.0.0.1:0 --to {to} --trace {}", file.display())
    };
    let relay = scene.serve(&(line(&trace) + " --queue codel:100packets --mtu 1000"));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&[0; 973], relay.address).unwrap();
    client.send_to(&[0; 972], relay.address).unwrap();
    target.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(target.recv(&mut [0; 1000]).unwrap(), 972);
    let counters: Value = serde_json::from_str(&relay.stop_and_read()).unwrap();
    assert_eq!(counters["to_target"]["dropped_mtu_packets"], 1);

    scene.run(&line(&broken)).fails(2, &["broken.trace:2", "3 comes after 5"]);
}

#[test]
fn a_relay_loses_the_configured_share() {
    let scene = Scene::new();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let relay = scene.serve(&format!(
        "lab relay --listen 127.0.0.1:0 --to {} --loss 100%",
        target.local_addr().unwrap()
    ));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..5 {
        client.send_to(b"lost", relay.address).unwrap();
    }
    target.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(target.recv(&mut [0; 10]).is_err());
    let counters: Value = serde_json::from_str(&relay.stop_and_read()).unwrap();
    assert_eq!(counters["to_target"]["dropped_loss_packets"], 5);
}

#[test]
fn traces_are_made_and_summarized() {
    let scene = Scene::new();
    let trace = scene.run("lab trace driving --seed 3 --duration 20s").succeeds();
    assert_eq!(trace.lines().last(), Some("20000"));
    assert_eq!(trace, scene.run("lab trace driving --seed 3 --duration 20s").succeeds());
    assert_ne!(trace, scene.run("lab trace driving --seed 4 --duration 20s").succeeds());
    let file = scene.write("my.trace", &trace);
    let check = format!("lab trace --check {}", file.display());
    let said = scene.run(&check).succeeds();
    assert!(said.contains("opportunities of 1504 bytes in 20s"), "{said}");
    let summary: Value = serde_json::from_str(&scene.run(&(check + " --json")).succeeds()).unwrap();
    assert_eq!(summary["duration_ms"], 20_000);
    assert_eq!(summary["lines"], trace.lines().count());
    scene.run("lab trace driving --duration 1h").fails(2, &["60min", "1s to 10min"]);
    let empty = scene.write("empty.trace", "");
    let check = format!("lab trace --check {}", empty.display());
    scene.run(&check).fails(2, &["empty.trace", "at least one line"]);
}

#[test]
fn the_demo_shows_each_mode() {
    let scene = Scene::new();
    let demo = "demo --size 200kB --rate 50Mbit/s --client-rtt 4ms --origin-rtt 4ms --loss 1%";
    let results: Value =
        serde_json::from_str(&scene.run(&format!("{demo} --json")).succeeds()).unwrap();
    let (results, others): (Vec<_>, Vec<_>) =
        results.as_array().unwrap().iter().partition(|result| result["part"] == "modes");
    let modes: Vec<_> = results.iter().map(|result| result["journey"].as_str().unwrap()).collect();
    let all = ["mft", "mdt", "mst", "rmdt", "tecc", "rmdt:off@cubic", "rmdt@cubic"];
    assert_eq!(modes, all);
    let others =
        others.iter().map(|it| [&it["part"], &it["journey"]].map(|it| it.as_str().unwrap()));
    let first =
        [["server", "mft@cubic"], ["server", "rmdt@cubic"], ["pages", "mft"], ["pages", "tecc"]];
    assert_eq!(others.collect::<Vec<_>>(), first);
    assert!(results.iter().all(|result| result["sha256"] == results[0]["sha256"]));
    for result in results {
        assert_eq!(result["bytes"], 200_000);
        for key in ["ideal_s", "fct_over_ideal", "e2e_retransmit_ratio", "rtt_ms"] {
            assert!(result[key].is_number(), "{key}: {result}");
        }
    }
    let table = scene.run(&format!("{demo} --modes mdt")).succeeds();
    assert!(table.contains("FCT/ideal") && table.contains("| mdt "), "{table}");
}

#[test]
fn the_demo_says_what_the_tunnel_gains() {
    let scene = Scene::new();
    let links = "--rate 10Mbit/s --client-rtt 4ms --origin-rtt 40ms";
    let line = format!("demo --parts server --size 2MB {links} --loss 8% --json");
    let results: Value = serde_json::from_str(&scene.run(&line).succeeds()).unwrap();
    let [without, with] = results.as_array().unwrap().as_slice() else { panic!("{results}") };
    assert_eq!([&without["is_estimate"], &with["is_estimate"]], [true, false], "{results}");
    let arrived = without["observed_bytes"].as_u64().unwrap();
    assert!(0 < arrived && arrived < 2_000_000, "it was stopped: {without}");
    assert!(without["fct_s"].as_f64() > without["observed_s"].as_f64(), "{without}");
    assert_eq!(with["observed_bytes"], 2_000_000);

    let links = "--rate 50Mbit/s --client-rtt 4ms --origin-rtt 4ms";
    let run = scene.run(&format!("demo --parts server,pages --size 200kB {links} --loss 0%"));
    let said = run.succeeds();
    for part in ["Without a tunnel, the download took ", "Through a tunnel", "(mode tecc), it is "]
    {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(run.stderr().contains("First part:") && run.stderr().contains("Second part:"));
    scene.run("demo --parts page").fails(2, &[]);
}

#[test]
fn the_demo_writes_both_layers_over_time() {
    let scene = Scene::new();
    let demo = "demo --size 500kB --rate 5Mbit/s --client-rtt 4ms --origin-rtt 4ms --loss 0%";
    let run = scene.run(&format!("{demo} --modes mft,rmdt@cubic --series both.csv --json"));
    assert_eq!(run.succeeds().lines().count(), 1, "results and samples do not mix");
    let csv = fs::read_to_string(scene.path("both.csv")).unwrap();
    let (header, lines) = csv.split_once('\n').unwrap();
    let columns =
        "e2e_pacing_mbps,tunnel_pacing_mbps,e2e_srtt_ms,tunnel_srtt_ms,tunnel_queue_bytes";
    assert_eq!(header, format!("mode,at_s,{columns}"));
    let lines: Vec<Vec<_>> = lines.lines().map(|line| line.split(',').collect()).collect();
    assert!(lines.is_sorted_by_key(|line| line[0] != "mft"), "{csv}");
    for (mode, empty) in [("mft", [3, 5, 6].as_slice()), ("rmdt@cubic", &[])] {
        let lines: Vec<_> = lines.iter().filter(|line| line[0] == mode).collect();
        assert!(lines.len() > 2, "{csv}");
        let times = lines.iter().map(|line| line[1].parse::<f64>().unwrap());
        assert!(times.is_sorted(), "{csv}");
        for line in lines {
            for (column, value) in line.iter().enumerate().skip(1) {
                let number = value.parse::<f64>();
                assert_eq!(number.is_err(), empty.contains(&column), "{mode}: {line:?}");
            }
        }
    }
    scene.run("demo --series no/both.csv").fails(1, &["no/both.csv"]);
}

#[test]
fn packagers_get_manual_pages_and_completions() {
    let scene = Scene::new();
    fs::create_dir(scene.path("man")).unwrap();
    scene.run("generate man man").succeeds();
    for page in ["tandem.1", "tandem-get.1", "tandem-lab-relay.1"] {
        assert!(scene.path("man").join(page).exists(), "{page}");
    }
    let page = fs::read_to_string(scene.path("man/tandem-get.1")).unwrap();
    assert!(page.contains("streams"), "{page}");
    // Help that only the long form has, examples and exit codes.
    for words in ["qlog file is written", "Examples:", "Exit codes:"] {
        assert!(page.contains(words), "no {words:?} in {page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(scene.run(&format!("generate completions {shell}")).succeeds().contains("tandem"));
    }
}
