#!/usr/bin/env bash
# Makes the packages tandem_VERSION-1_ARCH.deb and tandem-VERSION-1.ARCH.rpm in a folder, by nfpm, which needs Go.
#   deploy/package.sh FOLDER               builds the program: static, and as fast as the profile dist makes it
#   TANDEM=FILE deploy/package.sh FOLDER   takes this program
#   VERSION=1.2.3 deploy/package.sh FOLDER calls the packages so
set -euo pipefail
folder="$(realpath -m "${1:?usage: deploy/package.sh FOLDER}")"
cd "$(dirname "$0")/.."

NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.44.0 # later versions need a module that the Go proxy refuses
machine="$(uname -m)"
declare -A debian_names=([x86_64]=amd64 [aarch64]=arm64)
export ARCH="${debian_names[$machine]:?no name for $machine}" STAGE VERSION="${VERSION:-}"
test -n "$VERSION" || VERSION="$(cargo metadata --format-version 1 --no-deps | python3 -c \
    'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "tandem"))')"
STAGE="$(mktemp -d)"
trap 'rm -rf "$STAGE"' EXIT

if test -z "${TANDEM:-}"; then
    target="$machine-unknown-linux-gnu"
    # With --target, the flags do not apply to what runs while the program is built.
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --profile dist --bin tandem --target "$target"
    TANDEM="$(cargo metadata --format-version 1 --no-deps | python3 -c \
        'import json, sys; print(json.load(sys.stdin)["target_directory"])')/$target/dist/tandem"
fi
# put MODE FILE DESTINATION: a file of the package.
put() { install -D -m "$1" "$2" "$STAGE/$3"; }
put 755 "$TANDEM" usr/bin/tandem
mkdir -p "$STAGE/usr/share/man/man1"
"$TANDEM" generate man "$STAGE/usr/share/man/man1" >/dev/null
gzip -9n "$STAGE"/usr/share/man/man1/*
for shell in bash-completion/completions/tandem zsh/site-functions/_tandem fish/vendor_completions.d/tandem.fish; do
    name="${shell%%[-/]*}"
    "$TANDEM" generate completions "$name" | put 644 /dev/stdin "usr/share/$shell"
done
for unit in proxy pep; do
    sed 's|/usr/local/bin/tandem|/usr/bin/tandem|' "deploy/tandem-$unit.service" |
        put 644 /dev/stdin "usr/lib/systemd/system/tandem-$unit.service"
done
put 644 deploy/package/sysusers.conf usr/lib/sysusers.d/tandem.conf
put 644 deploy/90-tandem.conf usr/lib/sysctl.d/90-tandem.conf
put 644 deploy/certbot-hook usr/share/doc/tandem/certbot-hook
put 644 deploy/package/copyright usr/share/doc/tandem/copyright
put 644 CHANGELOG.md usr/share/doc/tandem/CHANGELOG.md

mkdir -p "$folder"
for packager in deb rpm; do
    go run "$NFPM" package --config deploy/package/nfpm.yaml --packager "$packager" --target "$folder"
done
