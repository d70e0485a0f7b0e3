#!/usr/bin/env bash
# Runs the chains of three proxies only, which are a part of run.sh. It needs no packages of the system but Go and
# Python.
#   interop/chains.sh [WORD ...]     runs only the cases whose line has all these words
#   interop/chains.sh --list         lists the cases
#   TANDEM=FILE interop/chains.sh    uses this program instead of a new build
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

need go python3
install_python_packages python3 "$cache/venv" requirements.txt
build_quic_go
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" -m chains.run "$@"
