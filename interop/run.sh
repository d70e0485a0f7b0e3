#!/usr/bin/env bash
# Runs every combination of client, proxies and origin. It first installs and builds the programs that they need.
#   interop/run.sh [WORD ...]     runs only the pairs whose line has all these words
#   interop/run.sh --list         lists the pairs
#   TANDEM=FILE interop/run.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
cache="$PWD/.cache"
mkdir -p "$cache/bin"

for tool in cargo go python3; do
    command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 1; }
done
command -v firefox-esr >/dev/null || { apt-get update -q && apt-get install -qy firefox-esr; } >&2

if ! cmp -s requirements.txt "$cache/venv/requirements.txt"; then
    python3 -m venv --clear "$cache/venv"
    # The file lists all packages, so that pip need not resolve any: curl_cffi asks for newer ones than it needs.
    "$cache/venv/bin/pip" install --quiet --no-deps -r requirements.txt
    cp requirements.txt "$cache/venv/"
fi

(
    cd quic-go
    go build -o "$cache/bin/quic-go-get" ./get
    go build -o "$cache/bin/quic-go-origin" ./origin
    go build -o "$cache/bin/masque-go-client" github.com/quic-go/masque-go/cmd/client
    go build -o "$cache/bin/masque-go-proxy" github.com/quic-go/masque-go/cmd/proxy
)

export TANDEM="${TANDEM:-}"
if [ -z "$TANDEM" ]; then
    cargo build --quiet --release --bin tandem
    TANDEM="$(cargo metadata --format-version 1 --no-deps | python3 -c \
        'import json, sys; print(json.load(sys.stdin)["target_directory"])')/release/tandem"
fi

exec "$cache/venv/bin/python" run.py "$@"
