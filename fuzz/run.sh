#!/bin/sh
# Fuzzes each target for SECONDS (default 30). If targets are named, it fuzzes only those:
#   fuzz/run.sh [SECONDS [TARGET ...]]
# The script needs cargo-fuzz. RUSTC_BOOTSTRAP lets the stable compiler accept the sanitizer's flags.
set -eu
cd "$(dirname "$0")"
seconds="${1:-30}"
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(cargo fuzz list)
export RUSTC_BOOTSTRAP=1
for target in "$@"; do
    echo "fuzzing $target for $seconds s"
    mkdir -p "corpus/$target"
    if [ -d "seeds/$target" ]; then cp -n "seeds/$target"/* "corpus/$target/"; fi
    cargo fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -verbosity=0 -print_final_stats=1
done
