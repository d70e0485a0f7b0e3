#!/usr/bin/env bash
# Checks `tandem pep` on a router between hosts in network namespaces: whether an origin hears it, and whether servers
# that know nothing of PEPs are left in peace. It needs root, and first installs and builds the programs.
#   interop/pep.sh [WORD ...]     runs only the cases whose line has all these words
#   interop/pep.sh --list         lists the cases
#   TANDEM=FILE interop/pep.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "pep.sh needs root" >&2; exit 1; }
need go python3
install_packages ip=iproute2 ethtool=ethtool nft=nftables nstat=iproute2 setpriv=util-linux
install_python_packages python3 "$cache/venv" requirements.txt
build_quic_go
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" -m pep.run "$@"
