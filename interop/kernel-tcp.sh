#!/usr/bin/env bash
# Checks the congestion control of kernel-tcp/ between real programs in network namespaces. It needs root,
# /dev/net/tun and Linux 6.10 or newer, and fails where they are missing.
#   interop/kernel-tcp.sh            uses a new build
#   TANDEM=FILE interop/kernel-tcp.sh  takes the links from this program
#   interop/kernel-tcp.sh measure    prints the tables of docs/design/kernel-tcp.md instead, which takes minutes
# The last line of the checks is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "kernel-tcp.sh needs root" >&2; exit 1; }
need python3
install_packages ip=iproute2 clang=clang iperf3=iperf3 bpftool=bpftool nft=nftables chrt=util-linux \
    /usr/include/libelf.h=libelf-dev /usr/include/zlib.h=zlib1g-dev
build_tandem

manifest=../kernel-tcp/Cargo.toml
cargo build --quiet --manifest-path "$manifest"
PROGRAMS="$(cargo metadata --manifest-path "$manifest" --format-version 1 --no-deps | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["target_directory"])')/debug"
export PROGRAMS

exec timeout --signal TERM 1200 python3 "kernel-tcp/${1:-check}.py"
