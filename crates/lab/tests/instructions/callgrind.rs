//! Reads the profiles of callgrind (<https://valgrind.org/docs/manual/cl-format.html>).

use std::collections::BTreeMap;

/// The instructions in a profile, without those that differ between machines.
///
/// Encryption (ring) and the C library choose their code by what the processor can do, and the C library is
/// another one on other systems. Both are left out. The test of copies counts calls of the allocator.
pub(crate) fn instructions(profile: &str) -> u64 {
    let (mut objects, mut files) = (BTreeMap::new(), BTreeMap::new());
    let (mut object, mut file) = ("", "");
    let (mut is_call, mut sum) = (false, 0);
    for line in profile.lines() {
        match line.split_once('=') {
            Some(("ob", name)) => object = resolve(&mut objects, name),
            Some(("fl", name)) => file = resolve(&mut files, name),
            // Other names count only as later references to them.
            Some(("cob", name)) => _ = resolve(&mut objects, name),
            Some(("fi" | "fe" | "cfi" | "cfl", name)) => _ = resolve(&mut files, name),
            Some(("calls", _)) => is_call = true,
            Some(_) => {}
            None if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) =>
            {
                // What a called function executes stands with the function itself.
                if !std::mem::take(&mut is_call) && is_counted(object, file) {
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

fn is_counted(object: &str, file: &str) -> bool {
    !object.ends_with(".so") && !object.contains(".so.") && !file.contains("/ring-")
}
