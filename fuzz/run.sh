#!/usr/bin/env bash
# Fuzzes targets. It needs cargo-fuzz; RUSTC_BOOTSTRAP lets the stable compiler accept the sanitizer's flags.
#
#   fuzz/run.sh [SECONDS [TARGET ...]]   each target, or those that are named, for so many seconds (default 30)
#   fuzz/run.sh --rotate N SECONDS       N targets for so many seconds each; all others run their seeds once
#
# The number of commits decides which targets have their turn, so that all come round, and that the same commit fuzzes
# the same targets; FUZZ_ROUND=NUMBER repeats another choice. As many targets run at a time as there are processors.
# FUZZ_ARGS has further arguments of `cargo fuzz run`, such as "--sanitizer none", which runs several times as fast.
# A failure leaves its input in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"
# Where a target panicked is in the report of the sanitizer. With this, cargo-fuzz would add where it noticed that itself.
export RUSTC_BOOTSTRAP=1 RUST_BACKTRACE=0
read -ra fuzz_args <<<"${FUZZ_ARGS:-}"

# The options of libFuzzer that a target needs. Without -max_len no input is longer than the longest seed, and deep
# states of nodes take many steps. -len_control=0 tries long inputs from the start.
options_of() {
    case "$1" in
    proxy_node | origin_node | wrong_node | malicious_proxy | malicious_origin) echo "-max_len=1500 -len_control=0" ;;
    tunnel_queue | admission | pep_flows | pep_listener | transport | transport_network) echo "-max_len=2000" ;;
    capsule | connect_tcp | h3_frame | local_http | socks5 | qpack | message) echo "-max_len=4096" ;;
    files | jwt | plan | takeover_lines | dns_message | https_records | rate_trace) echo "-max_len=4096" ;;
    esac
}

# Runs a target on a folder of inputs with these further options. What it says appears when it ends.
run() {
    local target="$1" inputs="$2" log status=0
    shift 2
    log="$(mktemp)"
    # shellcheck disable=SC2046 # options have no spaces
    cargo fuzz run "${fuzz_args[@]}" "$target" "$inputs" -- \
        $(options_of "$target") -timeout=20 -print_final_stats=1 "$@" >"$log" 2>&1 || status=$?
    if [ "$status" = 0 ]; then
        local executions edges
        executions="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
        edges="$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)"
        echo "$target: $executions executions, ${edges:-no new} edges"
    else
        printf '%s failed:\n%s\n' "$target" "$(tail -n 60 "$log")" >&2
    fi
    rm -f "$log"
    return "$status"
}

# Fuzzes a target from its corpus, which begins with its seeds.
fuzz() {
    mkdir -p "corpus/$1"
    if [ -d "seeds/$1" ]; then cp -n "seeds/$1"/* "corpus/$1/"; fi
    run "$1" "corpus/$1" -max_total_time="$2"
}

# Runs each seed of a target once, and the empty input.
run_seeds() {
    local none
    none="$(mktemp -d)"
    if [ -d "seeds/$1" ]; then run "$1" "seeds/$1" -runs=0; else run "$1" "$none" -runs=0; fi
}

# Waits for a job. A failure is remembered, so that the others go on.
failed=()
declare -A running=() # process IDs and their targets
reap() {
    local pid status=0
    wait -n -p pid || status=$?
    [ "$status" = 0 ] || failed+=("${running[$pid]}")
    unset "running[$pid]"
}

# Runs a function with a target as its first argument, when a processor is free.
start() {
    [ "${#running[@]}" -lt "$(nproc)" ] || reap
    "$@" &
    running[$!]="$2"
}

chosen=()
if [ "${1:-}" = --rotate ]; then
    count="$2" seconds="$3"
    mapfile -t all < <(cargo fuzz list)
    round="${FUZZ_ROUND:-$(git rev-list --count HEAD)}"
    for ((turn = 0; turn < count && turn < ${#all[@]}; turn++)); do
        chosen+=("${all[(round * count + turn) % ${#all[@]}]}")
    done
    echo "round $round fuzzes ${chosen[*]} for $seconds s each"
else
    seconds="${1:-30}"
    [ $# -eq 0 ] || shift
    chosen=("$@") all=()
    [ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(cargo fuzz list)
fi

cargo fuzz build "${fuzz_args[@]}" || { echo "failed: the build of the targets" >&2; exit 1; }
for target in "${all[@]}"; do
    [[ " ${chosen[*]} " == *" $target "* ]] || start run_seeds "$target"
done
for target in "${chosen[@]}"; do
    start fuzz "$target" "$seconds"
done
while [ "${#running[@]}" -gt 0 ]; do reap; done
[ "${#failed[@]}" = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
