#!/usr/bin/env bash
# Checks `tandem lab link` between real programs in network namespaces. It needs root, /dev/net/tun,
# iproute2 and Python, and fails where they are missing.
#   interop/link.sh                  uses a new build
#   TANDEM=FILE interop/link.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "link.sh needs root" >&2; exit 1; }
need python3
install_packages ip=iproute2 chrt=util-linux
build_tandem

exec timeout --signal TERM 300 python3 link/check.py
