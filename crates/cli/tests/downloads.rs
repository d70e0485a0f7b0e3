//! Tests of real downloads over loopback.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    fs,
    io::Read,
    process::{Child, ChildStdout, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Scene, Server, eventually, sha256};

#[test]
fn a_file_arrives_directly_and_through_one_and_two_proxies() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 1_000_000);
    let origin = scene.origin();
    let (near, far) = (scene.proxy("near.pem"), scene.proxy("far.pem"));
    let near_hop = format!("--via https://{} --ca near.pem", near.address);
    let far_hop = format!("--via https://{} --ca far.pem", far.address);
    for (hops, options) in [
        (0, String::new()),
        (1, near_hop.clone()),
        (2, format!("{near_hop} {far_hop}")),
        (1, format!("{near_hop} --streams 4")),
        (1, format!("{near_hop} --mode rmdt")),
        (2, format!("{near_hop} {far_hop} --mode rmdt --resequence window --repair-limit 3")),
        (2, format!("{near_hop} {far_hop} --mode tecc --streams 4")),
    ] {
        let line =
            format!("get https://{}/file --ca origin.pem {options} -o out --json", origin.address);
        let result: Value = serde_json::from_str(&scene.run(&line).succeeds()).unwrap();
        assert_eq!(sha256(&scene.path("out")), sha256(&file), "{line}");
        assert_eq!(result["sha256"], sha256(&file));
        assert_eq!(result["hops"], hops);
        let mode = match hops {
            0 => "mft",
            _ if line.contains("rmdt") => "rmdt",
            _ if line.contains("tecc") => "tecc",
            _ => "auto",
        };
        assert_eq!(result["mode"], mode);
        assert!(!scene.path("out.tandem-part").exists());
        fs::remove_file(scene.path("out")).unwrap();
    }
    for server in [origin, near, far] {
        let (status, said) = server.stop();
        assert!(status.success(), "{said}");
        assert!(!said.contains("listening on"), "said twice: {said}");
    }
}

#[test]
fn a_chain_leads_through_the_same_proxy_four_times_at_most() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 100_000);
    let (origin, proxy) = (scene.origin(), scene.proxy("proxy.pem"));
    let get = |hops: usize| {
        let via = format!("--via https://{} ", proxy.address).repeat(hops);
        format!(
            "get https://{}/file --ca origin.pem --ca proxy.pem {via} -o out --retry 0",
            origin.address
        )
    };
    scene.run(&get(4)).succeeds();
    assert_eq!(sha256(&scene.path("out")), sha256(&file));
    for hops in [5, 6] {
        scene.run(&get(hops)).fails(1, &["proxy_loop_detected"]);
    }
}

#[test]
fn files_of_any_size_arrive_whole_in_every_mode() {
    let scene = Scene::new();
    let (origin, proxy) = (scene.origin(), scene.proxy("proxy.pem"));
    // The head of the response and the body come in one packet, in some packets, and in many.
    for len in [1, 1000, 20_000, 300_000] {
        let file = scene.write_noise("root/file", len);
        for mode in ["mdt", "mst", "msgt", "rmdt", "tecc", "forward", "uack"] {
            let line = format!(
                "get https://{}/file --ca origin.pem --via https://{} --ca proxy.pem --mode {mode} -o out --quiet",
                origin.address, proxy.address
            );
            scene.run(&line).succeeds();
            assert_eq!(sha256(&scene.path("out")), sha256(&file), "{len} bytes, {line}");
            fs::remove_file(scene.path("out")).unwrap();
        }
    }
}

#[test]
fn several_urls_get_the_names_that_they_end_with() {
    let scene = Scene::new();
    let origin = scene.origin();
    let url = |name: &str| format!("https://{}/{name}", origin.address);
    for name in ["a.bin", "folder/b.bin"] {
        scene.write_noise(&format!("root/{name}"), 5000);
    }
    let got =
        scene.run(&format!("get -O --ca origin.pem {} {}", url("a.bin"), url("folder/b.bin")));
    got.succeeds();
    for (name, file) in [("a.bin", "root/a.bin"), ("b.bin", "root/folder/b.bin")] {
        assert_eq!(sha256(&scene.path(name)), sha256(&scene.path(file)), "{name}");
    }
    fs::remove_file(scene.path("a.bin")).unwrap();
    let all = [url("none.bin"), url("a.bin")].join(" ");
    let got = scene.run(&format!("get --remote-name --json --ca origin.pem {all}"));
    assert_eq!(got.code(), Some(1), "{}", got.stderr());
    assert!(got.stderr().contains("/none.bin: status 404"), "{}", got.stderr());
    assert!(got.stdout().lines().count() == 1 && scene.path("a.bin").is_file());
    let url = url("");
    let two = format!("get {url}a {url}b -o c --ca origin.pem");
    scene.run(&two).fails(2, &["c: several URLs do not fit into one file", "--remote-name"]);
    scene.run(&format!("get -O {url} --ca origin.pem")).fails(2, &["--output FILE"]);
}

#[test]
fn a_reader_of_standard_output_may_stop_early() {
    let scene = Scene::new();
    scene.write_noise("root/file", 2_000_000);
    let origin = scene.origin();
    let line = format!("get https://{}/file --ca origin.pem -o -", origin.address);
    let mut command = scene.command(line.split_whitespace());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut [0; 10]).unwrap();
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// A download to standard output that nobody reads beyond its first bytes.
fn unread(scene: &Scene, origin: &Server, file: &str, options: &str) -> (Child, ChildStdout) {
    let line =
        format!("get https://{}/{file} --ca origin.pem -o - --quiet {options}", origin.address);
    let mut command = scene.command(line.split_whitespace());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut [0; 10]).unwrap();
    (child, reader)
}

#[test]
fn a_reader_who_pauses_holds_up_no_signal_and_no_limit_and_gets_all_bytes_later() {
    let scene = Scene::new();
    let origin = scene.origin();
    // More than waits for a reader anywhere, and less, so that all has come when the reader has not taken it.
    for (name, len) in [("long", 40_000_000), ("short", 300_000)] {
        let file = scene.write_noise(&format!("root/{name}"), len);
        let (child, reader) = unread(&scene, &origin, name, "");
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{name}");
        drop(reader);
        let (child, reader) = unread(&scene, &origin, name, "--max-time 1s");
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("was not complete after 1s"), "{name}: {stderr}");
        drop(reader);
        let (child, mut reader) = unread(&scene, &origin, name, "");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        assert!(rest == fs::read(file).unwrap()[10..], "{name}: {} bytes came", rest.len());
    }
}

#[test]
fn a_server_without_http3_is_told_from_one_that_is_down() {
    let scene = Scene::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/file", server.local_addr().unwrap());
    let words = ["speaks HTTP/3 only", "over UDP", "curl"];
    scene.run(&format!("get {url} -o f")).fails(1, &words);
    let proxy = scene.proxy("proxy.pem");
    let via = format!("--via https://{} --ca proxy.pem", proxy.address);
    scene.run(&format!("get {url} -o f {via}")).fails(1, &words);
    let down = "https://127.0.0.1:1";
    let run = scene.run(&format!("get {url} -o f --via {down}"));
    run.fails(1, &["no program listens at 127.0.0.1:1"]);
    assert!(!run.stderr().contains("HTTP/3 only"), "{}", run.stderr());
}

#[test]
fn qlog_files_say_what_the_tunnels_cost() {
    let scene = Scene::new();
    scene.write_noise("root/file", 300_000);
    let origin = scene.origin();
    let (near, far) = (scene.proxy("near.pem"), scene.proxy("far.pem"));
    let hop = |server: &Server, ca: &str| format!("--via https://{} --ca {ca}", server.address);
    let hops = format!("{} {}", hop(&near, "near.pem"), hop(&far, "far.pem"));
    fs::create_dir(scene.path("qlog")).unwrap();
    let line = format!(
        "get https://{}/file --ca origin.pem {hops} -o out --json --qlog-dir qlog",
        origin.address
    );
    let result: Value = serde_json::from_str(&scene.run(&line).succeeds()).unwrap();
    let files = fs::read_dir(scene.path("qlog")).unwrap().map(|file| file.unwrap().path());
    let about_chain = |file: &std::path::PathBuf| {
        file.file_name().unwrap().to_string_lossy().starts_with("get-chain-")
    };
    let (files, of_connections): (Vec<_>, Vec<_>) = files.partition(about_chain);
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let records = |file: &std::path::PathBuf| -> Vec<Value> {
        let text = fs::read_to_string(file).unwrap();
        let records = text.split('\u{1e}').skip(1).map(serde_json::from_str);
        records.map(Result::unwrap).collect()
    };
    let mut roles: Vec<_> = of_connections
        .iter()
        .map(|file| {
            let records = records(file);
            assert!(
                records.iter().any(|record| record["name"] == "quic:packet_received"),
                "{file:?}"
            );
            assert_eq!(records[records.len() - 1]["time"].as_f64().map(f64::is_normal), Some(true));
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.ends_with("-client.qlog"), "{name}");
            name.split('-').next().unwrap().to_owned()
        })
        .collect();
    roles.sort();
    assert_eq!(roles, ["get", "tunnel", "tunnel"]);
    let records = records(file);
    let [header, event] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(header["qlog_format"], "JSON-SEQ");
    assert_eq!(event["name"], "tandem:chain_overhead");
    for key in ["chain_overhead_ratio", "chain_ack_ratio", "connections"] {
        assert_eq!(event["data"][key], result[key], "{key}");
    }
    assert_eq!(event["data"]["connections"].as_array().unwrap().len(), 3);
    let drawn = scene.run("qlog qlog -o picture.svg").succeeds();
    let picture = fs::read_to_string(scene.path("picture.svg")).unwrap();
    assert!(picture.contains("Download: ") && picture.contains("Mbit/s on average"), "{picture}");
    for (name, line) in ["tunnel 1", "tunnel 2", "end to end"].into_iter().zip(drawn.lines()) {
        assert!(line.starts_with(name) && line.contains("as its client saw it"), "{drawn}");
        assert!(picture.contains(name), "no {name} in the picture");
    }
    scene.run("qlog root").fails(1, &["no qlog of a client", "--qlog-dir"]);
    scene.run("qlog qlog --chain 7").fails(1, &["qlog: ", "tandem_chain 7"]);
}

#[test]
fn reports_of_a_tunnel_reach_the_origin_and_do_not_disturb_an_origin_that_ignores_them() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 500_000);
    for (origin, mode) in [
        ("--controller tecc --tecc q-target=60ms,theta=1Ts", "tecc"),
        ("--controller tecc-paper", "tecc-paper"),
        ("--controller cubic", "tecc"),
        ("--controller bbr1", "tecc"),
    ] {
        let line =
            format!("origin --listen 127.0.0.1:0 --root root --write-ca origin.pem {origin}");
        let origin = scene.serve(&line);
        let proxy = scene.serve(
            "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem \
             --feedback-interval 20ms",
        );
        let access = scene.serve(&format!(
            "lab relay --listen 127.0.0.1:0 --to {} --rate 8Mbit/s --delay 5ms",
            proxy.address
        ));
        let get = format!(
            "get https://{}/file --via https://{} --ca origin.pem --ca proxy.pem --mode {mode} \
             -o out --json",
            origin.address, access.address
        );
        let result: Value = serde_json::from_str(&scene.run(&get).succeeds()).unwrap();
        assert_eq!(sha256(&scene.path("out")), sha256(&file), "{line}");
        assert_eq!(result["mode"], mode);
        let [sent, received] =
            ["feedback_sent", "feedback_received"].map(|key| result[key].as_u64());
        assert!(received > Some(2), "{line}: {result}"); // 500 kB take half a second at least
        // Only the origin knows whether it followed them.
        assert_eq!(result["feedback_followed"], Value::Null, "{line}: {result}");
        // An origin that ignores reports only gets those that accompany the request.
        let is_relayed = if line.contains("tecc") { sent > Some(2) } else { sent <= Some(2) };
        assert!(is_relayed, "{line}: {result}");
    }
}

#[test]
fn an_upload_needs_an_origin_that_accepts_uploads() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("root")).unwrap();
    let origin = scene
        .serve("origin --listen 127.0.0.1:0 --root root --write-ca origin.pem --takes-uploads");
    let proxy = scene.proxy("proxy.pem");
    let put = format!("get https://{}/anywhere --ca origin.pem --upload 3MB", origin.address);
    let via = format!("{put} --via https://{} --ca proxy.pem", proxy.address);
    for (line, mode) in [
        (put.clone(), "mft"),
        (via.clone(), "tecc"), // the sender is this program, which follows reports
        (format!("{via} --mode mdt"), "mdt"),
        (format!("{via} --mode rmdt"), "rmdt"),
        (format!("{via} --mode tecc"), "tecc"),
        (format!("{via} --mode tecc-paper"), "tecc-paper"),
        (format!("{via} --mode tecc --controller cubic"), "tecc"),
    ] {
        let result: Value =
            serde_json::from_str(&scene.run(&format!("{line} --json")).succeeds()).unwrap();
        assert_eq!(
            (&result["bytes"], &result["mode"]),
            (&3_000_000.into(), &mode.into()),
            "{line}"
        );
        assert_eq!(result["sha256"], Value::Null, "{line}");
        let used = result["feedback_followed"].as_u64();
        let follows = mode.starts_with("tecc") && !line.contains("cubic");
        assert_eq!(used.is_some_and(|used| used > 0), follows, "{line}: {result}");
        assert_eq!(result["feedback_received"], 0, "{line}: {result}");
    }
    assert!(scene.run(&put).succeeds().starts_with("sent to   https://"));
    assert_eq!(fs::read_dir(scene.path("root")).unwrap().count(), 0, "nothing is stored");
    let other = scene.origin();
    let refused = format!("get https://{}/anywhere --ca origin.pem --upload 1kB", other.address);
    scene.run(&refused).fails(1, &["status 405", "--takes-uploads"]);
    for (arguments, words) in [
        ("--upload 11GB", ["0 B to 10 GB", "11GB"]),
        ("--upload much", ["0 B to 10 GB", "much"]),
        ("--upload 1kB -o out", ["--output", "--upload"]),
        ("--upload 1kB --streams 2", ["--streams", "--upload"]),
    ] {
        let run = scene.run(&format!("get https://localhost/ {arguments}"));
        assert_eq!(run.code(), Some(2), "{arguments}: {}", run.stderr());
        for word in words {
            assert!(run.stderr().contains(word), "{arguments}: {}", run.stderr());
        }
    }
}

#[test]
fn json_has_the_promised_fields() {
    let scene = Scene::new();
    scene.write("root/file", "abc");
    let origin = scene.origin();
    let proxy = scene.proxy("proxy.pem");
    let get = format!("get https://{}/file --insecure -o out --json", origin.address);
    let direct: Value = serde_json::from_str(&scene.run(&get).succeeds()).unwrap();
    let via = format!("{get} --via https://{}", proxy.address);
    let tunnelled = format!("{via} --mode mdt");
    let tunnelled: Value = serde_json::from_str(&scene.run(&tunnelled).succeeds()).unwrap();
    let by_default: Value = serde_json::from_str(&scene.run(&via).succeeds()).unwrap();
    let keys = ["mode", "chosen"].map(|key| by_default[key].clone());
    assert_eq!(
        (keys, &by_default["granted"]),
        (["auto", "ordered"].map(Value::from), &["tecc"][..].into())
    );
    assert_eq!((&direct["chosen"], &tunnelled["chosen"]), (&Value::Null, &Value::Null));
    for result in [&direct, &tunnelled] {
        assert_eq!(result["url"], format!("https://{}/file", origin.address));
        assert_eq!(result["bytes"], 3);
        // FIPS 180-2, appendix B.1
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(result["sha256"], abc);
        for key in ["fct_s", "handshake_s", "setup_s", "goodput_mbps", "rtt_ms"] {
            assert!(result[key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {result}");
        }
        assert_eq!(result["ideal_s"], Value::Null);
        // No reports were requested, nothing was redirected, and nothing was continued.
        for key in ["feedback_sent", "feedback_received", "redirects", "resumed_bytes"] {
            assert_eq!(result[key], 0, "{key}: {result}");
        }
    }
    assert_eq!(direct["tunnel_retransmit_ratio"], Value::Null);
    assert_eq!(tunnelled["tunnel_retransmit_ratio"], 0.0);
}

#[test]
fn the_summary_is_for_people() {
    let scene = Scene::new();
    scene.write("root/file", "abc");
    let origin = scene.origin();
    let address = origin.address;
    let shown = scene.run(&format!("get https://{address}/file --insecure -o out")).succeeds();
    assert!(shown.contains("saved     out\nsize      3 B\n"), "{shown}");
    let run = scene.run(&format!("get https://{address}/file --insecure -o -"));
    assert_eq!(run.succeeds(), "abc");
    assert!(run.stderr().contains("sha-256   ba7816bf"), "{}", run.stderr());
}

#[test]
fn an_empty_file_is_downloaded() {
    let scene = Scene::new();
    scene.write("root/empty", "");
    let origin = scene.origin();
    scene.run(&format!("get https://{}/empty --insecure -o out", origin.address)).succeeds();
    assert_eq!(fs::read(scene.path("out")).unwrap(), b"");
}

#[test]
fn quiet_means_that_only_errors_are_printed() {
    let scene = Scene::new();
    scene.write("root/file", "abc");
    let origin = scene.origin();
    let get = format!("get https://{}/file --insecure -o out", origin.address);
    for (line, prints) in [
        (format!("{get} -q"), false),
        (format!("{get} --quiet -vv"), false),
        (format!("{get} -q --json"), true),
    ] {
        let run = scene.run(&line);
        assert_eq!(!run.succeeds().is_empty(), prints, "{line}");
        assert!(line.contains("-vv") || run.stderr().is_empty(), "{line}: {}", run.stderr());
    }
    assert_eq!(scene.run(&format!("{get} -q -o -").replace("-o out ", "")).succeeds(), "abc");
    scene.run(&format!("{get} -q").replace("/file", "/none")).fails(1, &["404"]);
}

#[test]
fn a_device_stays_a_device() {
    let scene = Scene::new();
    scene.write_noise("root/file", 2_000_000);
    let origin = scene.origin();
    let get = format!("get https://{}/file --insecure -o /dev/null --json", origin.address);
    let result: Value = serde_json::from_str(&scene.run(&get).succeeds()).unwrap();
    assert_eq!(result["sha256"], sha256(&scene.path("root/file")));
    let ranges = scene.run(&format!("{get} --streams 4")).succeeds();
    let result: Value = serde_json::from_str(&ranges).unwrap();
    assert_eq!((&result["sha256"], &result["bytes"]), (&Value::Null, &2_000_000.into()));
    let null = fs::metadata("/dev/null").unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(&null));
    scene.run(&format!("{get} --continue")).fails(2, &["/dev/null", "--continue"]);
}

/// A download across a slow link, of which a part has arrived.
fn half_way(scene: &Scene, origin: &Server) -> (Child, Server) {
    scene.write_noise("root/large", 3_000_000);
    let link = scene.serve(&format!(
        "lab relay --listen 127.0.0.1:0 --to {} --rate 8Mbit/s --delay 1ms",
        origin.address
    ));
    let url = format!("https://{}/large", link.address);
    let mut command = scene.command(["get", &url, "--insecure", "--timeout", "2s", "-o", "out"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let part = scene.path("out.tandem-part");
    eventually("a first part", || fs::metadata(&part).is_ok_and(|meta| meta.len() > 100_000));
    (child, link)
}

#[test]
fn a_failure_half_way_leaves_only_the_part() {
    let scene = Scene::new();
    let origin = scene.origin();
    let (child, link) = half_way(&scene, &origin);
    drop(link);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("bytes are in out.tandem-part: repeat"), "{stderr}");
    assert!(stderr.contains("--continue"), "{stderr}");
    assert!(scene.path("out.tandem-part").exists() && !scene.path("out").exists());
}

#[test]
fn an_interrupted_download_exits_with_130() {
    let scene = Scene::new();
    let origin = scene.origin();
    let (child, link) = half_way(&scene, &origin);
    let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(id, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted") && stderr.contains("out.tandem-part"), "{stderr}");
    assert!(scene.path("out.tandem-part").exists() && !scene.path("out").exists());
    // The same command with --continue fetches the rest.
    for streams in ["", "--streams 3"] {
        let get = format!("get https://{}/large --insecure -o out --json {streams}", link.address);
        let before = fs::read(scene.path("out.tandem-part")).unwrap();
        let state = fs::read(scene.path("out.tandem-state")).unwrap();
        let result = scene.run(&format!("{get} --continue")).succeeds();
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(result["resumed_bytes"], before.len());
        assert_eq!(result["bytes"], 3_000_000);
        assert_eq!(result["sha256"], sha256(&scene.path("root/large")));
        assert_eq!(sha256(&scene.path("out")), sha256(&scene.path("root/large")));
        assert!(!scene.path("out.tandem-part").exists());
        assert!(!scene.path("out.tandem-state").exists());
        scene.write("out.tandem-part", before);
        scene.write("out.tandem-state", state);
    }
}

#[test]
fn a_client_certificate_opens_the_proxy() {
    let scene = Scene::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["somebody".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    scene.write("client-ca.pem", ca.pem());
    let issuer = rcgen::Issuer::new(params, key);
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(["somebody".to_owned()]).unwrap();
    scene.write("client.pem", leaf.signed_by(&leaf_key, &issuer).unwrap().pem());
    scene.write("client.key", leaf_key.serialize_pem());
    scene.write("root/file", "abc");
    let origin = scene.origin();
    let proxy = scene
        .serve("proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --client-ca client-ca.pem");
    let get = format!(
        "get https://{}/file --via https://{} --insecure -o out",
        origin.address, proxy.address
    );
    scene.run(&get).fails(1, &["--client-cert"]);
    scene.run(&format!("{get} --client-cert client.pem --client-key client.key")).succeeds();
}
