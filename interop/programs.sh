#!/usr/bin/env bash
# Runs VPNs and other programs through `tandem client --udp`, between hosts in network namespaces. It needs root and
# /dev/net/tun, and first installs and builds the programs.
#   interop/programs.sh [WORD ...]     runs only the cases whose line has all these words
#   interop/programs.sh --list         lists the cases
#   TANDEM=FILE interop/programs.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "programs.sh needs root" >&2; exit 1; }
test -c /dev/net/tun || { echo "/dev/net/tun is missing" >&2; exit 1; }
need cargo go python3
install_packages ip=iproute2 ping=iputils-ping wg=wireguard-tools openvpn=openvpn iperf3=iperf3 \
    dig=bind9-dnsutils kdig=knot-dnsutils mosh-server=mosh
install_python_packages python3 "$cache/venv" requirements.txt
(cd wireguard-go && go build -o "$cache/bin/wireguard" golang.zx2c4.com/wireguard)
build_tandem

exec timeout --signal TERM 600 "$cache/venv/bin/python" -m programs.run "$@"
