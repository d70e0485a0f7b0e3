#!/usr/bin/env bash
# Checks `tandem lab link` between real programs in network namespaces. It needs root, /dev/net/tun,
# iproute2 and Python, and fails where they are missing.
#   interop/link.sh                  uses a new build
#   TANDEM=FILE interop/link.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"

test "$(id -u)" = 0 || { echo "link.sh needs root" >&2; exit 1; }
command -v python3 >/dev/null || { echo "python3 is missing" >&2; exit 1; }
command -v ip >/dev/null || { apt-get update -q && apt-get install -qy iproute2; } >&2

export TANDEM="${TANDEM:-}"
if [ -z "$TANDEM" ]; then
    cargo build --quiet --release --bin tandem
    TANDEM="$(cargo metadata --format-version 1 --no-deps | python3 -c \
        'import json, sys; print(json.load(sys.stdin)["target_directory"])')/release/tandem"
fi

exec timeout --signal TERM 300 python3 link/check.py
