#!/usr/bin/env bash
# Checks certificates by ACME with Pebble, the server for tests of Let's Encrypt. It needs no root.
#   interop/acme.sh                  uses a new build
#   TANDEM=FILE interop/acme.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

need go python3
test -x "$cache/bin/pebble" || GOBIN="$cache/bin" go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1
install_python_packages python3 "$cache/venv" requirements.txt
build_tandem
export PEBBLE="$cache/bin/pebble"

exec timeout --signal TERM 300 "$cache/venv/bin/python" acme/check.py
