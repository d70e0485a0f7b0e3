#!/usr/bin/env bash
# Checks the way from a fresh user to the first byte through a proxy: two commands, 60 seconds. And a proxy that has a
# range of ports by a redirection of the kernel. All runs in a network and a mount namespace of its own, with names in a
# hosts file. It needs root.
#   interop/up.sh                  uses a new build
#   TANDEM=FILE interop/up.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "up.sh needs root" >&2; exit 1; }
need python3
install_packages ip=iproute2 setpriv=util-linux curl=curl nft=nftables
build_tandem

in_own_namespaces 300 python3 up/check.py
