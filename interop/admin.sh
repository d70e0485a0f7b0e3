#!/usr/bin/env bash
# Checks what `--admin` shows with the programs that operators use: promtool and Chromium. It needs root only to install
# them.
#   interop/admin.sh                  uses a new build
#   TANDEM=FILE interop/admin.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

need python3
install_packages promtool=prometheus chromium=chromium
build_tandem

exec timeout --signal TERM 300 python3 admin/check.py
