//! The files that operators and users write, and the state of a download. Whatever a text is, it is read as
//! something within its bounds, or the error has a line and words, and does not show a secret.
//!
//! The input is a letter for the kind of file, and its text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_files::{
    Fault,
    download::State,
    fleet::FleetFile,
    pair::PairFile,
    pvd::{self, Document, Expected, Origin},
    rules, tokens, users,
};
use tandem_node::{
    client::rules::{Action, Carried, Rules},
    proxy::is_user_name,
};

/// The shortest token.
const TOKEN_LEN_MIN: usize = 16;

/// The letters of a fleet's secret.
const SECRET_LEN: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some((kind, text)) = input.split_first() else { return };
    let text = &*String::from_utf8_lossy(text);
    match kind {
        b'u' => users_file(text),
        b'f' => fleet_file(text),
        b't' => tokens_file(text),
        b'p' => pair_file(text),
        b'd' => document(text),
        b'r' => rules_file(text),
        _ => download_state(text),
    }
});

fn check(fault: &Fault, text: &str) {
    let Fault { line, reason } = fault;
    assert!((1..=text.matches('\n').count() + 1).contains(line), "line {line} of {text:?}");
    assert!(!reason.trim().is_empty() && !reason.contains('\n'), "{reason:?}");
}

fn users_file(text: &str) {
    match users::parse(text) {
        Ok(rules) => {
            for (name, rule) in &rules.users {
                assert!(is_user_name(name), "{name:?}");
                let group = rule.group.as_ref();
                assert!(group.is_none_or(|group| rules.groups.contains_key(group)), "{rule:?}");
            }
        }
        Err(fault) => check(&fault, text),
    }
}

fn fleet_file(text: &str) {
    match FleetFile::parse(text) {
        Ok(file) => {
            let rotations: Vec<_> = file.rotations().collect();
            let written = file.to_string();
            let again = FleetFile::parse(&written).expect("what is written can be read");
            assert!(again.rotations().eq(rotations.iter().copied()));
            assert_eq!(again.to_string(), written);
            // The next generation never takes the place of one that is still known.
            let next = FleetFile::new(Some([1; 16]), [2; 32], Some(again), Vec::new());
            let next_rotations: Vec<_> = next.rotations().collect();
            let known = &rotations[..rotations.len().min(3)];
            assert_eq!(&next_rotations[1..], known);
            assert!(!known.contains(&next_rotations[0]), "{next_rotations:?}");
            for server_id in [&[][..], &[1], &[1; 14], &[1; 15]] {
                let member = FleetFile::parse(&written).expect("it was read").member(server_id);
                match member {
                    Ok(fleet) => assert!((1..=20).contains(&fleet.id_len()), "{}", fleet.id_len()),
                    Err(fault) => check(&fault, &written),
                }
            }
        }
        Err(fault) => {
            check(&fault, text);
            let is_shown = |value: &str| value.len() >= SECRET_LEN && fault.reason.contains(value);
            let shown = text.split('"').skip(1).step_by(2).find(|value| is_shown(value));
            assert_eq!(shown, None, "{fault}");
        }
    }
}

fn tokens_file(text: &str) {
    match tokens::parse(text) {
        Ok(tokens::Secrets { tokens, passwords }) => {
            let names = tokens.iter().map(|token| token.name());
            let names = names.chain(passwords.iter().map(|password| password.name()));
            let mut names: Vec<_> = names.map(str::to_owned).collect();
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
            assert!(names.iter().all(|name| is_user_name(name)), "{names:?}");
        }
        Err(fault) => {
            check(&fault, text);
            show_no_word_of(text, &fault.reason);
        }
    }
}

/// No word that may be a token is in an error, unless it is a word of ours.
fn show_no_word_of(text: &str, reason: &str) {
    let shown = |word: &&str| word.len() >= TOKEN_LEN_MIN && reason.contains(*word);
    assert_eq!(text.split_whitespace().find(shown), None, "{reason}");
}

fn pair_file(text: &str) {
    match PairFile::parse(text) {
        Ok(file) => assert!(!file.certificate.is_empty() || text.contains("CERTIFICATE")),
        Err(reason) => {
            assert!(!reason.is_empty());
            let token = text.lines().find_map(|line| line.strip_prefix("token = "));
            show_no_word_of(token.unwrap_or(""), &reason);
        }
    }
}

/// What a proxy tells of itself.
fn document(text: &str) {
    let origins = [Origin { host: "p.example".to_owned(), port: 443 }];
    let now = std::time::SystemTime::UNIX_EPOCH.into();
    let expected = Expected { host: Some("p.example"), origins: &origins, now };
    match Document::parse(text.as_bytes(), expected) {
        Ok(document) => {
            let is_of_origin = |it: &tandem_node::client::Template| Origin::of(it) == origins[0];
            assert!(document.udp.as_ref().is_none_or(is_of_origin), "{document:?}");
            assert!(document.rules.len() <= pvd::RULES_MAX + 1);
            let rules = Rules { document: document.rules, ..Rules::default() };
            for host in ["127.0.0.1", "::1", "localhost", "10.0.0.1", "fd00::1", "printer.local"] {
                let decision = rules.decide(host, 443, Carried::Tcp);
                assert_eq!(decision.action, Action::Direct, "{host} of {rules:?}");
            }
        }
        Err(error) => {
            let error = error.to_string();
            assert!(!error.contains(|it: char| it.is_control()), "{error:?}");
        }
    }
}

/// The rules of a user.
fn rules_file(text: &str) {
    match rules::parse(text) {
        Ok(rules) => {
            for rule in rules {
                let shown = rule.to_string();
                assert_eq!(rules::rule(&shown), Ok(rule), "{shown}");
            }
        }
        Err(fault) => check(&fault, text),
    }
}

fn download_state(text: &str) {
    let Some(state) = State::parse(text) else { return };
    let line = state.to_string();
    assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line:?}");
    assert_eq!(State::parse(&line), Some(state));
}
