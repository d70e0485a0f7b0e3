#!/usr/bin/env bash
# Installs, upgrades and removes the packages, in a copy of this machine's file system that is thrown away. It needs root,
# and first installs what it needs.
#   interop/packages.sh                uses a new build
#   TANDEM=FILE interop/packages.sh    uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "packages.sh needs root" >&2; exit 1; }
need go python3
install_packages dpkg=dpkg rpm=rpm setpriv=util-linux systemd-analyze=systemd
build_tandem

exec timeout --signal TERM 600 python3 packages/check.py
