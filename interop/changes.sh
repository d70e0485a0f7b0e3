#!/usr/bin/env bash
# Lets 100 downloads run through a proxy while its certificate, tokens, limits and program change, and compares their times with those
# of a run without changes. It needs no root.
#   interop/changes.sh [PAIRS]       makes this number of pairs of runs, 1 by default
#   TANDEM=FILE interop/changes.sh   uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

need python3
install_python_packages python3 "$cache/venv" requirements.txt
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" changes/check.py "$@"
