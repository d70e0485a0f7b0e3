#!/usr/bin/env bash
# Builds the static program for this kind of machine, and prints its path. It needs musl-gcc (Debian: musl-tools).
#   deploy/program.sh                          with everything, as fast as the profile dist makes it
#   deploy/program.sh --no-default-features    with other flags of cargo
set -euo pipefail
cd "$(dirname "$0")/.."

target="$(uname -m)-unknown-linux-musl"
libraries="$(rustc --print target-libdir --target "$target")"
if ! test -d "$libraries"; then
    echo "Rust has no standard library for $target: run rustup target add $target" >&2
    exit 1
fi
command -v musl-gcc >/dev/null || { echo "musl-gcc is missing: install musl-tools" >&2; exit 1; }
# With --target, the flags do not apply to what runs while the program is built. The text of a panic names a file of a
# crate; it should not also name the folders of the machine that built it.
export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
cargo build --locked --profile dist --bin tandem --target "$target" "$@" >&2
echo "$(cargo metadata --format-version 1 --no-deps | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["target_directory"])')/$target/dist/tandem"
