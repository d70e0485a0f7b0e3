use std::{fs, os::unix::fs::PermissionsExt};

use clap::{Args, FromArgMatches};

use super::*;
use crate::{help, link::Link};

const ALICE: &str = "0123456789abcdef";
const BOB: &str = "fedcba9876543210/+==";
const VIA: &str = "https://proxy.example";
const KINDS: [&str; 7] = ["apple", "surge", "sing-box", "mihomo", "curl", "firefox", "tandem"];

/// A folder with the file of a proxy, of one user, and a certificate.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        write_new(&folder.path().join(name), text, OWNER_ONLY).unwrap();
    };
    write("tokens", &format!("# users\nalice {ALICE}\nbob {BOB}\n"));
    write("token", &format!("{ALICE}\n"));
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["proxy.example".to_owned()]).unwrap();
    write("cert.pem", &params.self_signed(&key).unwrap().pem());
    folder
}

/// The arguments of a command line, in which FOLDER stands for a folder.
fn args(folder: &tempfile::TempDir, line: &[&str]) -> Result<ProfileArgs, clap::Error> {
    let path = folder.path().to_str().unwrap();
    let command = ProfileArgs::augment_args(clap::Command::new("profile")).no_binary_name(true);
    let line = line.iter().map(|word| word.replace("FOLDER", path));
    let given = help::independent_of_caller(command).try_get_matches_from(line)?;
    ProfileArgs::from_arg_matches(&given)
}

fn content(folder: &tempfile::TempDir, line: &[&str]) -> Result<Vec<u8>, String> {
    let content = args(folder, line).map_err(|error| error.to_string())?.content();
    match content.map_err(|error| error.to_string())? {
        Content::Text(text) => Ok(text.into_bytes()),
        Content::Binary(bytes) => Ok(bytes),
    }
}

fn text(line: &[&str]) -> String {
    String::from_utf8(content(&folder(), line).unwrap()).unwrap()
}

#[test]
fn what_a_client_cannot_be_told_is_an_error() {
    let two = ["--via", "https://second.example"];
    let template = "https://proxy.example/x{?target_host,target_port}";
    let secret = "https://proxy.example/secret/.well-known/masque/udp/{target_host}/{target_port}/";
    let can: [(&[&str], &[&str]); 7] = [
        (&two, &["apple", "surge", "sing-box"]),
        (&["--via", template], &["apple"]),
        (&["--domain", "a.example"], &["apple", "surge", "sing-box", "mihomo", "firefox"]),
        (
            &["--exclude-domain", "a.example"],
            &["apple", "surge", "sing-box", "mihomo", "curl", "firefox"],
        ),
        (
            &["--cert", "FOLDER/cert.pem"],
            &["apple", "surge", "sing-box", "mihomo", "curl", "tandem"],
        ),
        (&["--user", "a:b"], &["apple", "curl", "firefox", "tandem"]),
        (&["--user", "a\"b"], &["apple", "sing-box", "mihomo", "curl", "firefox", "tandem"]),
    ];
    let folder = folder();
    for (more, known) in can {
        for kind in KINDS {
            let line = [&[kind, "--via", VIA, "--token-file", "FOLDER/token"], more].concat();
            let found = content(&folder, &line);
            let error = found.as_ref().err().map(String::as_str).unwrap_or_default();
            assert_eq!(found.is_ok(), known.contains(&kind), "{line:?}: {error}");
            assert!(found.is_ok() || error.contains("has no room for"), "{line:?}: {error}");
        }
    }
    for (kind, via, is_known) in [
        ("apple", template, true),
        ("firefox", template, true),
        ("tandem", template, false),
        ("tandem", secret, true),
        ("firefox", secret, true),
        ("surge", secret, false),
        ("curl", secret, false),
    ] {
        assert_eq!(content(&folder, &[kind, "--via", via]).is_ok(), is_known, "{kind} {via}");
    }
    assert_eq!(text(&["tandem", "--via", secret]), "tandem://proxy.example/secret");
}

#[test]
fn a_user_gets_the_token_of_its_name() {
    let folder = folder();
    for (file, user, expected) in [
        ("tokens", Some("alice"), Ok("alice:0123456789abcdef@")),
        ("tokens", Some("bob"), Ok("bob:fedcba9876543210%2F%2B%3D%3D@")),
        ("tokens", None, Ok("alice:0123456789abcdef@")),
        ("token", None, Ok(":0123456789abcdef@")),
        ("token", Some("carol"), Ok("carol:0123456789abcdef@")),
        ("tokens", Some("carol"), Err("no token of the user \"carol\"")),
        ("tokens", Some("token-2"), Err("no token of the user \"token-2\"")),
        ("tokens", Some("a\u{1b}[2J"), Err("visible ASCII")),
        ("tokens", Some("a\nb"), Err("visible ASCII")),
        ("tokens", Some(""), Err("")),
        ("none", None, Err("cannot read")),
    ] {
        let file = format!("FOLDER/{file}");
        let mut line = vec!["tandem", "--via", VIA, "--token-file", &file];
        line.extend(user.into_iter().flat_map(|user| ["--user", user]));
        let found = content(&folder, &line).map(|text| String::from_utf8(text).unwrap());
        match expected {
            Ok(login) => assert_eq!(found.unwrap(), format!("tandem://{login}proxy.example")),
            Err(reason) => {
                let error = found.unwrap_err();
                assert!(error.contains(reason), "{user:?}: {error}");
                assert!(!error.contains('\u{1b}') && !error.contains(ALICE), "{user:?}: {error}");
            }
        }
    }
}

#[test]
fn no_name_ends_the_place_where_it_stands() {
    let user = "</string>&'a,b=c\u{7e}";
    let folder = folder();
    let made = |kind: &str| {
        let line = [kind, "--via", VIA, "--token-file", "FOLDER/token", "--user", user];
        String::from_utf8(content(&folder, &line).unwrap()).unwrap()
    };
    let plist = plist::Value::from_reader_xml(made("apple").as_bytes()).unwrap();
    let description = plist.as_dictionary().unwrap()["PayloadDescription"].as_string().unwrap();
    assert!(description.contains(user), "{description}");
    let surge = format!("username=\"{user}\", password={ALICE}\n");
    assert!(made("surge").contains(&surge), "{}", made("surge"));
    let sing_box: serde_json::Value = serde_json::from_str(&made("sing-box")).unwrap();
    assert_eq!(sing_box["outbounds"][0]["username"], user);
    assert!(made("mihomo").contains(&format!("    username: \"{user}\"\n")), "{}", made("mihomo"));
    assert_eq!(made("tandem").parse::<Link>().unwrap().name(), Some(user));

    for host in ["a,443,password=b", "a;b", "a'b", "a&b", "a=b.example", "$a"] {
        for kind in KINDS {
            let error = content(
                &folder,
                &[kind, "--via", &format!("https://{host}/x{{?target_host,target_port}}")],
            );
            let error = error.unwrap_err();
            assert!(error.contains("neither a DNS name nor"), "{kind} {host}: {error}");
        }
    }
    for domain in
        ["a b", "a,,b", "<b>", "*.a.example", "192.0.2.1", "a\n.example", "pröxy.example", "::1"]
    {
        let error = content(&folder, &["apple", "--via", VIA, "--domain", domain]).unwrap_err();
        assert!(error.contains("a domain such as"), "{domain}: {error}");
    }
}

#[test]
fn apple_has_a_relay_for_each_proxy_and_the_domains() {
    let made = text(&[
        "apple",
        "--via",
        "https://one.example:8443",
        "--via",
        VIA,
        "--user",
        "bob",
        "--token-file",
        "FOLDER/tokens",
        "--domain",
        "Corp.Example.,b.example",
        "--exclude-domain",
        "www.corp.example",
    ]);
    let plist = plist::Value::from_reader_xml(made.as_bytes()).unwrap();
    let whole = plist.as_dictionary().unwrap();
    assert_eq!(whole["PayloadType"].as_string(), Some("Configuration"));
    assert_eq!(whole["PayloadIdentifier"].as_string(), Some("example.proxy.tandem.bob"));
    let relay = whole["PayloadContent"].as_array().unwrap()[0].as_dictionary().unwrap();
    let strings = |key: &str| -> Vec<&str> {
        relay[key].as_array().unwrap().iter().map(|it| it.as_string().unwrap()).collect()
    };
    assert_eq!(strings("MatchDomains"), ["corp.example", "b.example"]);
    assert_eq!(strings("ExcludedDomains"), ["www.corp.example"]);
    let template = "/.well-known/masque/udp/{target_host}/{target_port}/";
    let relays = relay["Relays"].as_array().unwrap();
    for (relay, authority) in relays.iter().zip(["one.example:8443", "proxy.example"]) {
        let relay = relay.as_dictionary().unwrap();
        let url = relay["HTTP3RelayURL"].as_string().unwrap();
        assert_eq!(url, format!("https://{authority}{template}"));
        let fields = relay["AdditionalHTTPHeaderFields"].as_dictionary().unwrap();
        assert_eq!(fields["Proxy-Authorization"].as_string(), Some(&*format!("Bearer {BOB}")));
    }
    assert_eq!(relays.len(), 2);
}

#[test]
fn a_new_profile_takes_the_place_of_an_older_one_of_the_same_user() {
    let uuid = |line: &[&str]| {
        let plist = plist::Value::from_reader_xml(text(line).as_bytes()).unwrap();
        plist.as_dictionary().unwrap()["PayloadUUID"].as_string().unwrap().to_owned()
    };
    let first = uuid(&["apple", "--via", VIA, "--user", "alice"]);
    assert_eq!(uuid(&["apple", "--via", VIA, "--user", "alice", "--domain", "a.example"]), first);
    assert_ne!(uuid(&["apple", "--via", VIA, "--user", "bob"]), first);
    assert_ne!(uuid(&["apple", "--via", "https://other.example", "--user", "alice"]), first);
    let groups: Vec<&str> = first.split('-').collect();
    assert_eq!(groups.iter().map(|it| it.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    assert!(groups[2].starts_with('8') && "89AB".contains(&groups[3][..1]), "{first}");
}

#[test]
fn the_lines_of_each_client_are_these() {
    let whole = ["--user", "alice", "--token-file", "FOLDER/tokens"];
    let rules = ["--domain", "a.example", "--exclude-domain", "b.a.example"];
    let made =
        |kind: &str, more: &[&str]| text(&[&[kind, "--via", VIA][..], &whole, more].concat());
    assert_eq!(
        made("surge", &[&["--via", "https://[2001:db8::1]:8443"][..], &rules].concat()),
        "[Proxy]\n\
         Tandem-1 = masque, proxy.example, 443, username=alice, password=0123456789abcdef\n\
         Tandem = masque, 2001:db8::1, 8443, username=alice, password=0123456789abcdef, \
         underlying-proxy=Tandem-1\n\
         \n[Rule]\nDOMAIN-SUFFIX,b.a.example,DIRECT\nDOMAIN-SUFFIX,a.example,Tandem\nFINAL,DIRECT"
    );
    assert_eq!(
        made("mihomo", &rules),
        "mixed-port: 7890\nmode: rule\nproxies:\n  - name: Tandem\n    type: trusttunnel\n    \
         server: \"proxy.example\"\n    port: 443\n    username: \"alice\"\n    password: \
         \"0123456789abcdef\"\n    quic: true\n    udp: false\nrules:\n  \
         - DOMAIN-SUFFIX,b.a.example,DIRECT\n  - DOMAIN-SUFFIX,a.example,Tandem\n  - MATCH,DIRECT"
    );
    assert_eq!(
        made("curl", &["--exclude-domain", "a.example,b.example"]),
        "proxy = \"https://proxy.example:443\"\nproxy-header = \"Proxy-Authorization: Bearer 0123456789abcdef\"\n\
         noproxy = \"a.example,b.example\"\nproxy-http3"
    );
    let sing_box: serde_json::Value = serde_json::from_str(&made("sing-box", &rules)).unwrap();
    assert_eq!(sing_box["route"]["final"], "direct");
    assert_eq!(sing_box["route"]["rules"][0]["domain_suffix"], serde_json::json!(["b.a.example"]));
    assert_eq!(sing_box["outbounds"][0]["version"], 3);
    let chain = made("sing-box", &["--via", "https://second.example"]);
    let chain: serde_json::Value = serde_json::from_str(&chain).unwrap();
    assert_eq!(chain["outbounds"][1]["detour"], chain["outbounds"][0]["tag"]);
    assert_eq!(chain["route"]["final"], chain["outbounds"][1]["tag"]);
}

#[test]
fn a_certificate_is_pinned_in_the_form_of_each_client() {
    let folder = folder();
    let made = |kind: &str| {
        let line = [kind, "--via", VIA, "--cert", "FOLDER/cert.pem"];
        String::from_utf8(content(&folder, &line).unwrap()).unwrap()
    };
    let der = pem::certificates(&folder.path().join("cert.pem")).unwrap().swap_remove(0);
    let digest = Fingerprint(Sha256::digest(&der).into());
    assert!(made("surge").contains(&format!(", server-cert-fingerprint-sha256={digest}\n")));
    assert!(made("mihomo").contains(&format!("    fingerprint: \"{digest}\"\n")));
    assert_eq!(made("tandem"), format!("tandem://proxy.example?sha256={digest}"));
    let file = folder.path().join("cert.pem");
    assert!(made("curl").contains(&format!("proxy-cacert = \"{}\"\n", file.display())));
    assert_eq!(curl::quoted("a\"b\\c\nd"), r#""a\"b\\c\nd""#);
    let sing_box: serde_json::Value = serde_json::from_str(&made("sing-box")).unwrap();
    let lines = sing_box["outbounds"][0]["tls"]["certificate"].as_array().unwrap();
    let lines: Vec<_> = lines.iter().map(|line| line.as_str().unwrap()).collect();
    let file = fs::read_to_string(file).unwrap().replace('\r', "");
    assert_eq!(lines, file.lines().collect::<Vec<_>>());
    let plist = plist::Value::from_reader_xml(made("apple").as_bytes()).unwrap();
    let relay = &plist.as_dictionary().unwrap()["PayloadContent"].as_array().unwrap()[0];
    let relay = &relay.as_dictionary().unwrap()["Relays"].as_array().unwrap()[0];
    let key = relay.as_dictionary().unwrap()["RawPublicKeys"].as_array().unwrap()[0].as_data();
    // A P-256 key in DER has 91 bytes, and is a part of the certificate.
    let key = key.unwrap();
    assert!(key.len() == 91 && der.windows(91).any(|it| it == key));
}

#[test]
fn an_add_on_has_the_path_of_the_template_and_the_token() {
    let line = ["firefox", "--via", VIA, "--token-file", "FOLDER/token", "--domain", "a.example"];
    let archive = content(&folder(), &line).unwrap();
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut read = |name: &str| std::io::read_to_string(archive.by_name(name).unwrap()).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&read("manifest.json")).unwrap();
    assert_eq!(manifest["permissions"][0], "proxy");
    let script = read("background.js");
    for part in [
        "\"masqueTemplate\": \"/.well-known/masque/udp/{target_host}/{target_port}/\"",
        "\"proxyAuthorizationHeader\": \"Bearer 0123456789abcdef\"",
        "const domains = [\"a.example\"];\n",
        "const excluded = [];\n",
    ] {
        assert!(script.contains(part), "no {part} in {script}");
    }
}

#[test]
fn files_are_new_and_for_their_owner_only() {
    let folder = folder();
    for kind in KINDS {
        let file = folder.path().join(kind);
        let name = format!("FOLDER/{kind}");
        let line = [kind, "--via", VIA, "--token-file", "FOLDER/token", "-o", &name];
        args(&folder, &line).unwrap().run().unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{kind}");
        let error = args(&folder, &line).unwrap().run().unwrap_err().to_string();
        assert!(error.contains("exists"), "{kind}: {error}");
    }
    let line = ["firefox", "--via", VIA];
    let error = args(&folder, &line).unwrap().run().unwrap_err().to_string();
    assert!(error.contains("-o FILE"), "{error}");
}

#[test]
fn a_picture_shows_the_modules_of_the_code() {
    let folder = folder();
    let line = [
        "tandem",
        "--via",
        VIA,
        "--token-file",
        "FOLDER/token",
        "--png",
        "FOLDER/png",
        "-o",
        "FOLDER/link",
    ];
    args(&folder, &line).unwrap().run().unwrap();
    let mode = fs::metadata(folder.path().join("png")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let file = std::io::BufReader::new(fs::File::open(folder.path().join("png")).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let side = reader.next_frame(&mut pixels).unwrap().width as usize;
    // The quiet zone has 4 modules of 8 pixels. In its corner begins a finder pattern of 7 modules.
    let row: Vec<bool> = (0..side).map(|x| pixels[32 * side + x] == 0).collect();
    let is_dark = |module: usize| row[8 * module + 4];
    assert!((0..4).all(|it| !is_dark(it)) && (4..11).all(is_dark) && !is_dark(11));
    let error = args(&folder, &["curl", "--via", VIA, "--png", "FOLDER/x"]).unwrap().run();
    assert!(error.unwrap_err().to_string().contains("QR code"));
    let long = format!("{}\n", "a".repeat(4000));
    fs::write(folder.path().join("long"), long).unwrap();
    let line = ["tandem", "--via", VIA, "--token-file", "FOLDER/long", "--png", "FOLDER/y"];
    let error = args(&folder, &line).unwrap().run().unwrap_err().to_string();
    assert!(error.contains("too long for a QR code"), "{error}");
    assert!(!folder.path().join("y").exists());
}
