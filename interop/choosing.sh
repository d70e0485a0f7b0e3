#!/usr/bin/env bash
# Checks clients that choose among proxies, by the HTTPS records of a real name server (Knot DNS) and by a list. All hosts
# are network namespaces. It needs root, and first installs and builds the programs.
#   interop/choosing.sh [WORD ...]     runs only the cases whose line has all these words
#   interop/choosing.sh --list         lists the cases
#   TANDEM=FILE interop/choosing.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "choosing.sh needs root" >&2; exit 1; }
need go python3
install_packages ip=iproute2 ethtool=ethtool nft=nftables knotd=knot
install_python_packages python3 "$cache/venv" requirements.txt
build_quic_go
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" -m choosing.run "$@"
