#!/usr/bin/env bash
# Checks proxies behind a load balancer that routes by connection IDs: rules of nftables that read the number of the
# machine from each packet. All hosts are network namespaces. It needs root, and first installs and builds the programs.
#   interop/fleet.sh [WORD ...]     runs only the cases whose line has all these words
#   interop/fleet.sh --list         lists the cases
#   TANDEM=FILE interop/fleet.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "fleet.sh needs root" >&2; exit 1; }
need python3
install_packages ip=iproute2 ethtool=ethtool nft=nftables
install_python_packages python3 "$cache/venv" requirements.txt
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" -m fleet.run "$@"
