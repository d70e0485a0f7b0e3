//! Tests of downloads from origins that behave in other ways than ours: redirects, and downloads that
//! are continued.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

#[path = "support/scripted.rs"]
mod scripted;
mod support;

use std::{
    fs,
    process::Stdio,
    sync::{Arc, Mutex},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    scripted::{Answer, Scripted},
    support::{Scene, eventually},
};

/// The time of the last change, and a time after it.
const CHANGED: &str = "Thu, 01 Jan 1970 00:00:59 GMT";
const DATE: &str = "Thu, 01 Jan 1970 00:01:00 GMT";

const OLD: &[u8] = b"0123456789";
const NEW: &[u8] = b"abcdefghijkl";

/// An origin that sends the first four bytes of [`OLD`] with these fields, and after them what the
/// test says.
struct Unfinished {
    scene: Scene,
    origin: Scripted,
    next: Arc<Mutex<Option<Answer>>>,
}

impl Unfinished {
    /// A download that was interrupted after four bytes.
    fn with(fields: &[(&'static str, &str)]) -> Self {
        let beginning = fields
            .iter()
            .fold(Answer::new(200).field("content-length", "10"), |answer, (name, value)| {
                answer.field(name, *value)
            });
        let beginning = beginning.body(&OLD[..4]).cut();
        let next = Arc::new(Mutex::new(None));
        let origin = Scripted::start({
            let next = Arc::clone(&next);
            move |request| match next.lock().unwrap().clone() {
                None => beginning.clone(),
                // The answer is only for requests that would continue a download.
                Some(answer) if request.headers.contains_key("if-range") => answer,
                Some(_) => Answer::new(200).field("etag", "\"new\"").body(NEW),
            }
        });
        let unfinished = Self { scene: Scene::new(), origin, next };
        unfinished.interrupt();
        unfinished
    }

    fn line(&self) -> String {
        format!("get https://{}/file --insecure -o out --json", self.origin.address)
    }

    fn interrupt(&self) {
        let mut command = self.scene.command(self.line().split_whitespace());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let part = self.scene.path("out.tandem-part");
        eventually("a first part", || fs::metadata(&part).is_ok_and(|meta| meta.len() == 4));
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
        self.origin.seen();
    }

    /// Continues the download from an origin that answers the request that continues it with this. Returns
    /// the result, the file, the error output, and what the first request asked for.
    fn go_on(&self, answer: Answer, options: &str) -> (Value, Vec<u8>, String, Vec<String>) {
        *self.next.lock().unwrap() = Some(answer);
        let run = self.scene.run(&format!("{} --continue {options}", self.line()));
        let result = serde_json::from_str(&run.succeeds()).unwrap();
        assert!(!self.scene.path("out.tandem-part").exists());
        assert!(!self.scene.path("out.tandem-state").exists());
        let asked = self.origin.seen();
        let field = |name| asked[0].headers.get(name).map(|value| value.to_str().unwrap());
        let asked = ["range", "if-range"].into_iter().filter_map(field).map(str::to_owned);
        (result, fs::read(self.scene.path("out")).unwrap(), run.stderr(), asked.collect())
    }
}

fn rest(tag: &'static str) -> Answer {
    let answer = Answer::new(206).field("content-range", "bytes 4-9/10").field("etag", tag);
    answer.body(&OLD[4..])
}

#[test]
fn a_download_is_continued_if_the_file_is_the_same() {
    for (what, fields, answer, condition) in [
        ("by its tag", &[("etag", "\"old\"")][..], rest("\"old\""), "\"old\""),
        (
            "by its time",
            &[("last-modified", CHANGED), ("date", DATE)],
            Answer::new(206)
                .field("content-range", "bytes 4-9/10")
                .field("last-modified", CHANGED)
                .body(&OLD[4..]),
            CHANGED,
        ),
    ] {
        for (options, range) in [("", "bytes=4-"), ("--streams 2", "bytes=4-1048579")] {
            let unfinished = Unfinished::with(fields);
            let (result, file, said, asked) = unfinished.go_on(answer.clone(), options);
            assert_eq!(file, OLD, "{what}: {said}");
            assert_eq!((&result["bytes"], &result["resumed_bytes"]), (&10.into(), &4.into()));
            assert_eq!(asked, [range, condition], "{what}");
            let sha256 = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
            assert_eq!(result["sha256"], sha256, "of the whole file");
        }
    }
}

#[test]
fn a_download_that_cannot_be_continued_starts_at_the_beginning_and_says_so() {
    let tag = &[("etag", "\"old\"")][..];
    for (what, fields, answer, says) in [
        (
            "the file changed",
            tag,
            Answer::new(200).field("etag", "\"new\"").body(NEW),
            "the origin has another file now",
        ),
        (
            "the origin ignores ranges",
            tag,
            Answer::new(200).field("etag", "\"old\"").body(NEW),
            "the origin sends no ranges",
        ),
        ("the origin ignores If-Range", tag, rest("\"new\""), "the origin has another file now"),
        (
            "the file became shorter",
            tag,
            Answer::new(416).field("content-range", "bytes */3"),
            "the origin has another file now",
        ),
        (
            "another file has the length of the part",
            tag,
            Answer::new(416).field("content-range", "bytes */4").field("etag", "\"new\""),
            "the origin has another file now",
        ),
        ("no validator", &[], rest("\"new\""), "the origin sent no validator"),
        ("a weak validator", &[("etag", "W/\"old\"")], rest("\"new\""), "sent no validator"),
        ("a time alone", &[("last-modified", CHANGED)], rest("\"new\""), "sent no validator"),
    ] {
        for options in ["", "--streams 2"] {
            let unfinished = Unfinished::with(fields);
            let (result, file, said, _) = unfinished.go_on(answer.clone(), options);
            assert_eq!(file, NEW, "{what} {options}: {said}");
            assert_eq!((&result["bytes"], &result["resumed_bytes"]), (&12.into(), &0.into()));
            assert!(said.contains(says), "{what}: {said}");
        }
    }
}

#[test]
fn a_part_that_is_complete_already_gets_its_name() {
    let unfinished = Unfinished::with(&[("etag", "\"old\"")]);
    let answer = Answer::new(416).field("content-range", "bytes */4");
    let (result, file, ..) = unfinished.go_on(answer, "");
    assert_eq!(file, &OLD[..4]);
    assert_eq!((&result["bytes"], &result["resumed_bytes"]), (&4.into(), &4.into()));
}

#[test]
fn redirects_are_followed_to_other_hosts_and_through_proxies() {
    let scene = Scene::new();
    scene.write("root/sub/index.html", "the index");
    let origin = scene.origin();
    let proxy = scene.proxy("proxy.pem");
    let end = format!("https://{}/sub/", origin.address);
    let folder = end.trim_end_matches('/').to_owned();
    let redirecting = Scripted::start(move |request| {
        let (status, location) = match request.path.as_deref() {
            Some("/301") => (301, folder.clone()),
            Some("/302") => (302, "/303?x=1".to_owned()),
            Some("/303?x=1") => (303, "307".to_owned()),
            Some("/307") => (307, "./308#fragment".to_owned()),
            Some("/308") => (308, "/301".to_owned()),
            _ => return Answer::new(404),
        };
        Answer::new(status).field("location", location)
    });
    let via = format!("--via https://{}", proxy.address);
    for (path, options, count) in
        [("301", "", 2), ("302", "", 6), ("302", via.as_str(), 6), ("302", "--max-redirs 6", 6)]
    {
        let address = redirecting.address;
        let get = format!("get https://{address}/{path} --insecure -o out --json {options}");
        let result: Value = serde_json::from_str(&scene.run(&get).succeeds()).unwrap();
        assert_eq!(fs::read(scene.path("out")).unwrap(), b"the index");
        assert_eq!(result["url"], end);
        assert_eq!(result["redirects"], count, "{get}");
        fs::remove_file(scene.path("out")).unwrap();
    }
    let get = format!("get https://{}/302 --insecure -o out", redirecting.address);
    scene.run(&format!("{get} --max-redirs 5")).fails(1, &["5 redirects", &end]);
    scene.run(&format!("{get} --max-redirs 0")).fails(1, &["302", "/303?x=1", "--max-redirs 0"]);
    assert!(!scene.path("out").exists() && !scene.path("out.tandem-part").exists());
}

#[test]
fn a_redirect_that_leads_nowhere_is_an_error() {
    let scene = Scene::new();
    let origin = Scripted::start(|request| match request.path.as_deref() {
        Some("/plain") => Answer::new(301).field("location", "http://a.example/"),
        Some("/circle") => Answer::new(302).field("location", "/circle"),
        Some("/nowhere") => Answer::new(302),
        _ => Answer::new(303).field("location", "/elsewhere"),
    });
    let get = |path, options| {
        scene.run(&format!("get https://{}/{path} --insecure {options}", origin.address))
    };
    get("plain", "-o out").fails(1, &["301", "http://a.example/", "https"]);
    get("circle", "-o out").fails(1, &["302", "10 redirects", "--max-redirs"]);
    assert_eq!(origin.seen().len(), 12, "one, and eleven");
    get("nowhere", "-o out").fails(1, &["status 302"]);
    get("upload", "--upload 1kB").fails(1, &["303", "/elsewhere", "307 and 308"]);
    assert!(!scene.path("out").exists());
}

#[test]
fn a_transfer_without_progress_is_given_up_whatever_the_origin_sends() {
    let scene = Scene::new();
    // RFC 9114 §7.2.1: a DATA frame may be empty. §7.2.8: a frame of a reserved type means nothing.
    let (empty_data, reserved): (&[u8], &[u8]) = (&[0, 0], &[0x21, 3, 1, 2, 3]);
    let begun = || Answer::new(200).field("content-length", "10").body(&OLD[..4]);
    for (what, answer, carried) in [
        ("nothing more", begun().cut(), true),
        ("empty frames", begun().noise(empty_data), true),
        ("reserved frames", begun().noise(reserved), true),
        ("interim answers", Answer::only_interim(), false),
    ] {
        let origin = Scripted::start(move |_| answer.clone());
        let get = |options: &str| {
            scene.run(&format!("get https://{}/f --insecure -o out {options}", origin.address))
        };
        let run = get("--speed-time 500ms");
        run.fails(1, &["the transfer was given up: it carried 0 B in"]);
        assert_eq!(run.stderr().contains("the first 4 bytes are in"), carried, "{what}");
        get("--max-time 500ms --speed-time 0").fails(1, &["was not complete after 500ms"]);
        get("--speed-limit 100Mbit/s --speed-time 300ms").fails(1, &["was given up"]);
    }
}

#[test]
fn an_upload_follows_a_redirect_with_its_method_and_body() {
    let scene = Scene::new();
    scene.write("root/file", "");
    let origin =
        scene.serve("origin --listen 127.0.0.1:0 --root root --takes-uploads --write-ca o.pem");
    let to = format!("https://{}/file", origin.address);
    let redirecting = Scripted::start(move |_| Answer::new(307).field("location", to.clone()));
    let put = format!("get https://{}/ --insecure --upload 5kB --json", redirecting.address);
    let result: Value = serde_json::from_str(&scene.run(&put).succeeds()).unwrap();
    assert_eq!((&result["bytes"], &result["redirects"]), (&5000.into(), &1.into()));
    assert_eq!(redirecting.seen()[0].method, "PUT");
}

#[test]
fn what_an_origin_says_commands_no_terminal_and_forges_no_line() {
    const REASON: &str = "bye\nerror: run this\r\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{2066}\u{200b}\u{ad}\u{2028}end";
    let origin = Scripted::start(|_| Answer::close(REASON));
    let scene = Scene::new();
    for options in ["", "-v", "-vv", "--log-format json", "-vv --log-format json"] {
        let line = format!("get https://{}/file --insecure -o out {options}", origin.address);
        let run = scene.run(&line);
        assert_eq!(run.code(), Some(1), "{line}");
        let said = run.stderr();
        let raw = said
            .chars()
            .find(|&c| c != '\n' && (c.is_control() || !c.is_ascii() && REASON.contains(c)));
        assert_eq!(raw, None, "{line}: {said:?}");
        assert!(
            said.contains("run this") && !said.lines().any(|it| it.starts_with("error: run")),
            "{said}"
        );
        let lines_are_json = said.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
        assert_eq!(lines_are_json, options.contains("json"), "{said}");
    }
}
