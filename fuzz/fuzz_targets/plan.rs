//! A plan of runs (TOML): what is read has as many runs as it says, all different, and few. Whatever the
//! text is, the error is one line in words.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tandem_experiments::plan::{Plan, RUNS_MAX, Variant};

/// The most runs that are looked at one by one.
const LOOKED_AT: usize = 100;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    for variant in [Variant::Full, Variant::Short] {
        // The folder has no recordings, so that a path in the plan leads nowhere.
        match Plan::parse(Path::new("/nonexistent/plan.toml"), &text, variant) {
            Ok(plan) => {
                assert!((1..=RUNS_MAX).contains(&plan.len()), "{} runs", plan.len());
                let runs: Vec<_> = plan.runs().take(LOOKED_AT).collect();
                assert_eq!(runs.len() as u64, plan.len().min(LOOKED_AT as u64));
                for (run, other) in runs.iter().zip(runs.iter().skip(1)) {
                    assert_ne!(run, other);
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
