//! Tests of wrong input: the exit code, and one line that names the error and a remedy.

mod support;

use std::net::UdpSocket;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::support::Scene;

#[test]
fn wrong_flags_say_what_is_allowed() {
    let scene = Scene::new();
    for (line, words) in [
        ("get", &["URL"][..]),
        ("get http://a/ -o f", &["http://a/", "https URL"]),
        ("get localhost:4433/file -o f", &["localhost:4433/file", "https:// is missing"]),
        ("get https://::1:4433/file -o f", &["https://::1:4433/file", "brackets"]),
        ("get https://a/ -o f --controller bbr9", &["bbr9", "newreno"]),
        ("get https://a/ -o f --mode tcp", &["tcp", "mdt"]),
        ("get https://a/ -o f --via https://p --beyond forward", &["beyond", "no second proxy"]),
        ("get https://a/ -o f --group-streams 1", &["--group-streams", "1", "2 to 16"]),
        ("get https://a/ -o f --group-streams 17", &["--group-streams", "17", "2 to 16"]),
        (
            "get https://a/ -o f --resequence sorted",
            &["--resequence", "sorted", "off, window, ordered"],
        ),
        ("get https://a/ -o f --repair-limit 256", &["--repair-limit", "256"]),
        ("get https://a/ -o f --repair-deadline 0ms", &["--repair-deadline", "0ms", "1ms to 1min"]),
        ("get https://a/ -o f --repair-deadline 61s", &["--repair-deadline", "61s", "1ms to 1min"]),
        ("get https://a/ -o f --initial-window 1", &["--initial-window", "1", "2 to 1000"]),
        ("get https://a/ -o f --up-gain-percent 301", &["--up-gain-percent", "301", "100 to 300"]),
        (
            "proxy --listen 127.0.0.1:0 --feedback-interval 4ms",
            &["--feedback-interval", "4ms", "5ms to 1s"],
        ),
        (
            "proxy --listen 127.0.0.1:0 --feedback-interval 2s",
            &["--feedback-interval", "2s", "5ms to 1s"],
        ),
        ("get https://a/ -o f --streams 0", &["--streams", "0"]),
        ("get https://a/ -o f --max-redirs 51", &["--max-redirs", "51", "0 to 50"]),
        ("get https://a/ --upload 1kB --continue", &["--upload", "--continue"]),
        ("get https://a/ -o f --timeout soon", &["soon"]),
        ("proxy --listen localhost", &["localhost", "127.0.0.1:4433"]),
        ("proxy --listen 127.0.0.1:0 --allow-target 10.0.0.0/99", &["10.0.0.0/99", "prefix"]),
        ("client --via ftp://p --udp 127.0.0.1:0=a:1", &["ftp://p", "https://HOST:PORT"]),
        ("client --via https://p --udp 127.0.0.1:0", &["127.0.0.1:0", "LISTEN=TARGET"]),
        ("lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --rate 10Mb", &["Mb", "Mbit/s"]),
        ("lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --loss 500%", &["500%", "100%"]),
        ("lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --loss bursts:5%", &["bursts:5%,4"]),
        (
            "lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --loss-at end",
            &["end", "before, after"],
        ),
        (
            "lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --queue red:1MB",
            &["red", "codel:LIMIT"],
        ),
        ("lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --outages 1s,2s,2s", &["every 2s"]),
        ("lab relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace none", &["none", "No such file"]),
        ("lab link --near a/b", &["a/b", "12"]),
        ("lab link --network 10.77.0.1/30", &["10.77.0.1/30", "10.77.0.0/30"]),
        ("lab link --device-mtu 576", &["576", "1280"]),
        ("demo --modes tcp", &["tcp", "mft, mdt", "tecc-paper"]),
        ("demo --modes rmdt+", &["rmdt+", "rmdt, tecc"]),
        ("demo --modes mft-tuned", &["mft-tuned", "mft, mdt"]),
        ("get https://a/ -o f --mode mft-tuned", &["mft-tuned", "tecc-paper"]),
        ("get https://a/ -o f --mode rmdt+", &["rmdt+", "tecc-paper"]),
        ("demo --controller off", &["off", "bbr1"]),
        ("demo --controller tecc", &["tecc is for origins", "MODE@tecc"]),
        ("demo --modes mst:window", &["mst", "tecc"]),
        ("client --via https://p --udp 127.0.0.1:0=a:1 --mode tcp", &["tcp", "tecc-paper"]),
        ("dance", &["dance"]),
    ] {
        let run = scene.run(line);
        assert_eq!(run.code(), Some(2), "tandem {line}");
        for word in words {
            assert!(run.stderr().contains(word), "tandem {line}: no {word:?} in {}", run.stderr());
        }
    }
}

#[test]
fn wrong_targets_of_connections_say_what_is_allowed() {
    let scene = Scene::new();
    for (line, words) in [
        ("client --via https://p --tcp 127.0.0.1:0=a", &["host and a port", "LISTEN=TARGET"][..]),
        ("client --via https://p --tcp localhost:0=a:1", &["localhost:0", "IP address"]),
        ("client --via https://p --proxy 1080", &["an IP address and a port", "[::]:443"]),
        ("proxy --listen 127.0.0.1:0 --tcp-ports https", &["\"https\"", "all, none", "8000-8999"]),
        ("client --via https://p --stdio ::1:22", &["brackets", "HOST:PORT"]),
    ] {
        let run = scene.run(line);
        assert_eq!(run.code(), Some(2), "tandem {line}");
        for word in words {
            assert!(run.stderr().contains(word), "tandem {line}: no {word:?} in {}", run.stderr());
        }
    }
}

#[test]
fn settings_that_do_not_fit_together_are_refused() {
    let scene = Scene::new();
    scene.write("cert.pem", "no certificate");
    for (line, words) in [
        ("get https://a/ -o f --mode mdt", &["mode mdt", "via"][..]),
        ("get https://a/ -o f --mode mft --via https://p", &["mode mft", "via"]),
        ("get https://a/ -o f --mode rmdt", &["mode rmdt", "via"]),
        ("get https://a/ -o f --mode tecc", &["mode tecc", "via"]),
        ("get https://a/ -o f --controller tecc", &["tecc is for origins", "cubic"]),
        (
            "proxy --listen 127.0.0.1:0 --controller tecc-paper",
            &["tecc-paper is for origins", "bbr1-tunnel"],
        ),
        ("origin --listen 127.0.0.1:0 --root . --tecc delta=1", &["tecc needs controller tecc"]),
        (
            "origin --listen 127.0.0.1:0 --root . --controller tecc --tecc q-target=1h",
            &["q-target", "1h", "0 to 2 s"],
        ),
        (
            "origin --listen 127.0.0.1:0 --root . --controller tecc-paper --tecc x=1",
            &["\"x\"", "q-target"],
        ),
        ("get https://a/ -o - --streams 2", &["streams", "output -"]),
        ("get https://a/ -o - --continue", &["output = -", "--continue needs a file"]),
        ("get https://a/ -o f --ca cert.pem --insecure", &["ca", "insecure"]),
        ("get https://a/ -o f --controller off", &["off", "newreno"]),
        ("get https://a/ -o .", &["output", "folder"]),
        ("get https://a/ -o no/f", &["output", "folder does not exist"]),
        ("get https://a/ -o f --ca cert.pem", &["cert.pem", "CERTIFICATE"]),
        ("get https://a/ -o f --ca none.pem", &["none.pem", "No such file"]),
        ("get https://a/ -o f --insecure --qlog-dir none", &["qlog-dir", "none"]),
        ("proxy", &["listen is missing", "--listen ADDR", "TANDEM_LISTEN"]),
        ("proxy --listen 0.0.0.0:0", &["0.0.0.0:0", "--token-file", "--allow-anyone"]),
        ("proxy --listen 127.0.0.1:0 --cert cert.pem", &["cert needs key"]),
        ("proxy --listen 127.0.0.1:0 --token-file none", &["none", "No such file"]),
        ("origin --listen 127.0.0.1:0", &["root is missing", "--root DIR"]),
        ("origin --listen 127.0.0.1:0 --root none", &["root", "none", "no such folder"]),
        (
            "client --via https://p",
            &[
                "nothing to carry",
                "--udp LISTEN",
                "--tcp LISTEN",
                "--proxy LISTEN",
                "--stdio TARGET",
            ],
        ),
        (
            "client --via https://p --proxy 0.0.0.0:1080",
            &["0.0.0.0:1080", "--proxy-password-file FILE", "USER:PASSWORD", "127.0.0.1:1080"],
        ),
        (
            "client --via https://p --udp 127.0.0.1:0=a:1 --proxy-password-file password",
            &["proxy-password-file needs proxy"],
        ),
        (
            "client --via https://p --proxy 127.0.0.1:0 --proxy-password-file none",
            &["none", "No such file"],
        ),
        (
            "client --via https://p --proxy 127.0.0.1:0 --proxy-password-file cert.pem",
            &["cert.pem:1: ", "USER:PASSWORD"],
        ),
        ("client --via https://p --stdio a:1 --json", &["json and stdio", "standard output"]),
        ("lab link --near a --far a", &["near and far", "two names"]),
    ] {
        scene.run(line).fails(2, words);
    }
}

#[test]
fn a_wrong_configuration_file_names_line_and_key() {
    let scene = Scene::new();
    for (toml, words) in [
        ("listen = \"localhost:1\"\n", &["proxy.toml:1: listen", "localhost:1", "[::]:443"][..]),
        ("\nlisten = 4433\n", &["proxy.toml:2: listen: 4433", "not an IP address", "[::]:443"]),
        (
            "listen = \"[::1]:0\"\nlisen = 1\n",
            &["proxy.toml:2: lisen: 1: unknown setting", "did you mean `listen`?"],
        ),
        ("allow_target = []\n", &["proxy.toml:1: allow_target", "`allow-target`?"]),
        ("\ncerts = \"c\"\n", &["proxy.toml:2: certs", "`cert`", "tandem generate config proxy"]),
        ("\n\ncontroller = \"bbr9\"\n", &["proxy.toml:3: controller: \"bbr9\"", "newreno"]),
        ("[tls]\ncert = \"c\"\n", &["proxy.toml:1: tls", "there are no tables"]),
        ("config = \"other.toml\"\n", &["proxy.toml:1: config", "unknown setting"]),
        ("insecure = true\n", &["proxy.toml:1: insecure", "unknown setting"]),
        ("log-clients = 1\n", &["proxy.toml:1: log-clients: 1: allowed: true, false"]),
        ("listen = [\"[::1]:0\"]\n", &["proxy.toml:1: listen", "takes one value"]),
        ("listen = { port = 1 }\n", &["proxy.toml:1: listen", "takes no table"]),
        (
            "allow-target = [\n \"10.0.0.0/8\",\n \"ten\",\n]\n",
            &["proxy.toml:3: allow-target", "ten"],
        ),
        (
            "listen = \"[::1]:0\"\nfeedback-interval = \"4ms\"\n",
            &["proxy.toml:2: feedback-interval", "4ms", "5ms to 1s"],
        ),
        ("\ninitial-window = 1\n", &["proxy.toml:2: initial-window: 1: ", "2 to 1000"]),
        ("listen = \n", &["proxy.toml:1"]),
        ("listen = \"[::1]:0\"\nlisten = \"[::1]:1\"\n", &["proxy.toml:2", "duplicate"]),
    ] {
        scene.write("proxy.toml", toml);
        scene.run("proxy --config proxy.toml").fails(2, words);
    }
    scene.run("proxy --config none.toml").fails(2, &["none.toml", "No such file"]);
}

#[test]
fn a_variable_out_of_range_is_refused() {
    let scene = Scene::new();
    let mut command = scene.command(["proxy", "--check", "--listen", "127.0.0.1:0"]);
    let output = command.env("TANDEM_FEEDBACK_INTERVAL", "4ms").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("4ms") && stderr.contains("5ms to 1s"), "{stderr}");
}

#[test]
fn a_flag_or_a_variable_takes_the_place_of_what_the_file_trusts() {
    let scene = Scene::new();
    scene.write("client.toml", "insecure = true\n");
    let client = "client --config client.toml --check --via https://p --udp 127.0.0.1:0=a:1";
    assert!(scene.run(client).succeeds().contains("insecure = true"));
    scene.run(&format!("{client} --ca none.pem")).fails(2, &["none.pem", "No such file"]);
    scene.write("client.toml", "via = [\"https://q\", \"https://r\"]\nca = [\"none.pem\"]\n");
    let printed = scene.run(&format!("{client} --insecure")).succeeds();
    assert!(printed.contains("insecure = true"), "{printed}");
    assert!(printed.contains("https://p/") && !printed.contains("https://q/"), "{printed}");
}

#[test]
fn check_prints_the_effective_configuration() {
    let scene = Scene::new();
    scene.write(
        "etc/proxy.toml",
        "listen = \"127.0.0.1:1\"\nallow-target = [\"10.0.0.0/8\"]\ntoken-file = \"tokens\"\n",
    );
    scene.write("etc/tokens", "# for the tests\n0123456789abcdef\n");
    let mut command = scene.command([
        "proxy",
        "--config",
        "etc/proxy.toml",
        "--check",
        "--listen",
        "127.0.0.1:3",
    ]);
    command.env("TANDEM_LISTEN", "127.0.0.1:2").env("TANDEM_CONTROLLER", "cubic");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    for line in [
        "listen = \"127.0.0.1:3\"", // a flag overrides the environment, which overrides the file
        "controller = \"cubic\"",   // environment
        "allow-target = [\"10.0.0.0/8\"]", // file
        "allow-anyone = false",     // default
        "token-file = \"etc/tokens\"", // relative to the folder of the file
    ] {
        assert!(printed.lines().any(|printed| printed == line), "no {line} in\n{printed}");
    }
    scene.write("effective.toml", &printed);
    assert_eq!(scene.run("proxy --config effective.toml --check").succeeds(), printed);
}

#[test]
fn a_token_file_has_tokens() {
    let scene = Scene::new();
    scene.write("tokens", "# none\n\n");
    scene.run("proxy --listen 127.0.0.1:0 --token-file tokens").fails(2, &["tokens has no token"]);
    scene.write("tokens", "0123456789abcdef\nshort\n");
    let run = scene.run("proxy --listen 127.0.0.1:0 --token-file tokens");
    run.fails(2, &["tokens:2", "16 to 8192"]);
    assert!(!run.stderr().contains("short"), "a secret in an error: {}", run.stderr());
    assert!(run.stderr().contains("chmod 600"), "{}", run.stderr());
}

#[test]
fn an_unreachable_server_is_named() {
    let scene = Scene::new();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for line in [
        format!("get https://{address}/ --insecure --timeout 300ms -o f"),
        format!("get https://127.0.0.1:1/ --via https://{address} --insecure --timeout 300ms -o f"),
    ] {
        scene.run(&line).fails(1, &[&address, "does not answer", "300ms", "UDP"]);
    }
    drop(silent); // the port is now closed, and the kernel reports it
    let line = format!("get https://{address}/ --insecure --timeout 5s -o f");
    scene.run(&line).fails(1, &[&address, "check host and port"]);
    assert!(!scene.path("f.tandem-part").exists());
}

#[test]
fn an_address_in_use_is_named() {
    let scene = Scene::new();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    scene.write("root/f", "");
    scene.run(&format!("origin --listen {address} --root root")).fails(1, &[&address, "in use"]);
    let line = format!("lab relay --listen {address} --to 127.0.0.1:1");
    scene.run(&line).fails(1, &[&address, "in use"]);
}

#[test]
fn the_error_for_a_missing_token_says_how_to_give_one() {
    let scene = Scene::new();
    scene.write("tokens", "0123456789abcdef\n");
    scene.write("wrong", "0123456789abcdeX\n");
    scene.write("root/f", "carried");
    let origin = scene.origin();
    let proxy =
        scene.serve("proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --token-file tokens");
    let get =
        format!("get https://{}/f --via https://{} --insecure -o f", origin.address, proxy.address);
    scene.run(&get).fails(1, &["401", "--token-file"]);
    scene.run(&format!("{get} --token-file wrong")).fails(1, &["401", "--token-file"]);
    scene.run(&format!("{get} --token-file tokens")).succeeds();
}

#[test]
fn a_refused_target_says_how_to_allow_it() {
    let scene = Scene::new();
    let proxy = scene.serve("proxy --listen 127.0.0.1:0");
    let address = proxy.address;
    let line = format!("get https://127.0.0.1:1/ --via https://{address} --insecure -o f");
    scene.run(&line).fails(1, &["refused", "127.0.0.1:1", "403", "--allow-target"]);
}

#[test]
fn a_target_without_a_program_is_said_to_refuse() {
    let scene = Scene::new();
    let (near, far) = (scene.proxy("near.pem"), scene.proxy("far.pem"));
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = free.local_addr().unwrap().to_string();
    drop(free); // the port is now closed, and the kernel reports it
    let (near, far) = (near.address, far.address);
    for (line, proxy, target) in [
        (format!("get https://{nobody}/ --via https://{near}"), near, &nobody),
        (format!("get https://{nobody}/ --via https://{near} --mode mst"), near, &nobody),
        (format!("get https://{nobody}/ --via https://{near} --mode rmdt"), near, &nobody),
        (format!("get https://{nobody}/ --via https://{near} --via https://{far}"), far, &nobody),
        (
            format!("get https://localhost/ --via https://{near} --via https://{nobody}"),
            near,
            &nobody,
        ),
    ] {
        let words = [&proxy.to_string(), target, "the target refused the connection"];
        scene.run(&format!("{line} --insecure -o f")).fails(1, &words);
    }
    let line = format!("get https://nobody.invalid/ --via https://{near} --insecure -o f");
    scene.run(&line).fails(1, &["502", "nobody.invalid", "could not be resolved", "dns_error"]);
}

#[test]
fn a_client_of_programs_logs_that_the_target_refuses() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let client = scene.serve(&format!(
        "client --udp 127.0.0.1:0={nobody} --via https://{} --ca proxy.pem",
        proxy.address
    ));
    program.send_to(b"anybody there?", client.address).unwrap();
    let line = client.says("closed the tunnel");
    for words in [&nobody.to_string(), "the target refused the connection (connection_refused)"] {
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn an_unknown_path_is_a_404() {
    let scene = Scene::new();
    let origin = scene.origin();
    let line = format!("get https://{}/none --insecure -o f", origin.address);
    scene.run(&line).fails(1, &["/none", "404"]);
    assert!(!scene.path("f").exists() && !scene.path("f.tandem-part").exists());
}

#[test]
fn certificates_are_checked() {
    let scene = Scene::new();
    scene.write("root/f", "");
    let origin = scene.origin();
    let _other = scene.proxy("other.pem"); // writes the CA of another server
    let address = origin.address;
    let get = |options: &str| scene.run(&format!("get https://{address}/f -o f {options}"));
    get("--ca other.pem").fails(1, &["UnknownIssuer", "--ca", "--insecure"]);
    get("--ca other.pem --ca origin.pem").succeeds();
    let run = get("--insecure");
    run.succeeds();
    assert!(run.stderr().contains("warning: --insecure"), "{}", run.stderr());
}

#[test]
fn an_expired_certificate_is_called_expired() {
    let scene = Scene::new();
    scene.write("root/f", "");
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    scene.write("ca.pem", ca.self_signed(&ca_key).unwrap().pem());
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    leaf.not_before = date_time_ymd(2020, 1, 1);
    leaf.not_after = date_time_ymd(2021, 1, 1);
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    scene.write("cert.pem", leaf.pem());
    scene.write("key.pem", key.serialize_pem());
    let origin =
        scene.serve("origin --listen 127.0.0.1:0 --root root --cert cert.pem --key key.pem");
    let line = format!("get https://{}/f --ca ca.pem -o f", origin.address);
    scene.run(&line).fails(1, &["expired", "renew", "after 2021-01-01 00:00 UTC"]);
}
