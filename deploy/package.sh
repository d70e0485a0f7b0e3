#!/usr/bin/env bash
# Makes packages in a folder: tandem_VERSION-1_ARCH.deb and tandem-VERSION-1.MACHINE.rpm by nfpm, which needs Go 1.25,
# and the archive tandem-VERSION-MACHINE-linux.tar.gz, which belongs into /usr/local. deploy/release.sh makes a whole
# release.
#   deploy/package.sh FOLDER               builds the program (deploy/program.sh)
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
# The same commit gives the same packages: files have the time of the commit.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct || date +%s)}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
STAGE="$scratch/stage"
TANDEM="${TANDEM:-$(deploy/program.sh)}"

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
for unit in deploy/tandem-*.service; do
    sed 's|/usr/local/bin/tandem|/usr/bin/tandem|' "$unit" | put 644 /dev/stdin "usr/lib/systemd/system/${unit##*/}"
done
put 644 deploy/package/sysusers.conf usr/lib/sysusers.d/tandem.conf
put 644 deploy/90-tandem.conf usr/lib/sysctl.d/90-tandem.conf
put 644 deploy/certbot-hook usr/share/doc/tandem/certbot-hook
put 644 deploy/package/copyright usr/share/doc/tandem/copyright
put 644 CHANGELOG.md usr/share/doc/tandem/CHANGELOG.md
python3 deploy/package/licences.py | gzip -9n | put 644 /dev/stdin usr/share/doc/tandem/LICENCES.gz
find "$STAGE" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$folder"
for packager in deb rpm; do
    go run "$NFPM" package --config deploy/package/nfpm.yaml --packager "$packager" --target "$folder"
done

# What belongs to any Linux: no service and no user.
name="tandem-$VERSION-$machine-linux"
mkdir -p "$scratch/$name/share"
cp -a "$STAGE/usr/bin" "$scratch/$name"
cp -a "$STAGE"/usr/share/* "$scratch/$name/share"
tar --create --sort name --owner 0 --group 0 --numeric-owner --mtime "@$SOURCE_DATE_EPOCH" --mode go-w,u+w \
    --directory "$scratch" "$name" | gzip -9n >"$folder/$name.tar.gz"
echo "created package: $folder/$name.tar.gz"
