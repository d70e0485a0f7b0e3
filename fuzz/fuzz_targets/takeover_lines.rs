//! What a process hears from the one before it at the same address: about its sockets, and what users have
//! used. What is read can be told again, names are those of users, and no sum overflows.
//!
//! The input is a letter for the kind of message, and its bytes.

#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tandem_files::takeover::{Hello, LINE_MAX, parse_usage, usage_line};
use tandem_node::proxy::{UserRules, Users, is_user_name};

/// The time since 1970, in the month 2027-01.
const NOW: Duration = Duration::from_secs(1_800_000_000);

fuzz_target!(|input: &[u8]| {
    let Some((kind, message)) = input.split_first() else { return };
    if *kind == b'h' {
        if let Ok(hello) = Hello::parse(message) {
            let again = Hello::parse(hello.to_string().as_bytes()).expect("it was told by us");
            assert_eq!((again.is_understood(), &again), (hello.is_understood(), &hello));
        }
        return;
    }
    let text = String::from_utf8_lossy(message);
    let users = Users::new(UserRules::default());
    #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
    users.set_time(Instant::now(), NOW);
    for line in text.lines().take(100) {
        let Some(used) = parse_usage(line) else { continue };
        assert!(is_user_name(&used.name), "{:?}", used.name);
        let told = usage_line(&used);
        assert!(told.len() as u64 <= LINE_MAX, "{} bytes", told.len());
        assert_eq!(parse_usage(&told).as_ref(), Some(&used));
        let before = bytes_of(&users, &used.name);
        users.add_used([used.clone()]);
        let after = bytes_of(&users, &used.name);
        assert!(after >= before, "{before} bytes became {after}");
    }
});

/// The bytes that a user has used.
fn bytes_of(users: &Users, name: &str) -> u64 {
    let usage = users.usage();
    let usage = usage.iter().find(|usage| usage.name == name);
    usage.map_or(0, |usage| usage.month_bytes.to_target)
}
