#!/bin/sh
# Attacks a proxy on loopback with small doses of everything that tandem-siege has, in less than four
# minutes, and fails if a bound is broken. The checks are about outcomes and bytes, not about times.
#   attack/run.sh [PROGRAM]     PROGRAM is the tandem to attack (default target/debug/tandem)
set -u
cd "$(dirname "$0")/.."
tandem="${1:-target/debug/tandem}"
# With the tests, the dependencies have the features that they have in `cargo test`, and are built once for both.
cargo build --quiet --workspace --bins --tests || exit 1
# Each flow needs a socket of the proxy, and each client one of the attacker.
ulimit -n "$(ulimit -H -n)"
broken=""
siege() {
    echo "--- tandem-siege $*"
    timeout 120 target/debug/tandem-siege --tandem "$tandem" "$@" || broken="$broken $1"
}
siege connections --count 2600 --hold 1s --rest 5s # the allocator gives back within a second
siege handshakes --count 300 --ports 10 --rest 1s
siege gaps --connections 2 --flows 200
siege guesses --duration 3s
siege descriptors
siege memory --duration 15s --setting 256MB
siege rush --duration 6s --least 20 # users are served meanwhile, whatever the machine can do
siege restart --clients 300 --packets 2000 --within 5s
siege churn --users 500 --duration 20s --leave 50
# With a memory limit on the process, and strangers from five prefixes, if a control group can be made here.
if attack/in_group.sh --check 2> /dev/null; then
    group="$(mktemp)" && chmod 700 "$group"
    printf '#!/bin/sh\nexec attack/in_group.sh 300000000 "%s" "$@"\n' "$tandem" > "$group"
    alone="$tandem" tandem="$group"
    siege connections --prefixes 5 --count 8000 --hold 1s --rest 5s --memory-after 100MB
    tandem="$alone"
    rm -f "$group"
fi
siege soak --flows 600 --connections 60 --duration 40s --rest 35s
if [ -n "$broken" ]; then
    echo "these attacks broke a bound:$broken" >&2
    exit 1
fi
echo "every bound held"
