//! Reads the profiles of callgrind (<https://valgrind.org/docs/manual/cl-format.html>).

use std::collections::BTreeMap;

/// The instructions of Rust functions in a profile, without those of encryption.
///
/// Encryption (ring) and the C library choose their code by what the processor can do, and the C library is another one
/// on other systems. Both are left out, and so are all functions in C, such as those of the allocator jemalloc, which
/// works in the background and measures itself by the clock. The test of copies counts calls of the allocator.
pub(crate) fn instructions(profile: &str) -> u64 {
    let mut functions = BTreeMap::new();
    let (mut is_counted, mut is_call, mut sum) = (false, false, 0);
    for line in profile.lines() {
        match line.split_once('=') {
            Some(("fn", name)) => is_counted = is_rust_but_not_ring(resolve(&mut functions, name)),
            // The name counts only as a later reference to it.
            Some(("cfn", name)) => _ = resolve(&mut functions, name),
            Some(("calls", _)) => is_call = true,
            Some(_) => {}
            None if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) =>
            {
                // What a called function executes stands with the function itself.
                if !std::mem::take(&mut is_call) && is_counted {
                    let cost = line.split_whitespace().nth(1);
                    sum += cost.and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
                }
            }
            None => {}
        }
    }
    sum
}

/// A name is `(number) name` for the first time, and then `(number)`.
fn resolve<'a>(names: &mut BTreeMap<&'a str, &'a str>, name: &'a str) -> &'a str {
    let (number, name) = name.split_once(' ').unwrap_or((name, ""));
    if !name.is_empty() {
        names.insert(number, name);
    }
    names.get(number).copied().unwrap_or_default()
}

/// Only names of Rust functions contain two colons. Names of files would not do: a release has none.
fn is_rust_but_not_ring(function: &str) -> bool {
    function.contains("::") && !function.starts_with("ring::") && !function.starts_with("<ring::")
}
