#!/usr/bin/env bash
# Makes a release and checks it: packages are installed, upgraded and removed in a copy of this machine's file system;
# install.sh runs in a bare Debian, and refuses what was not signed; the container image runs. All is thrown away. It
# needs root, and first installs what it needs.
#   interop/packages.sh                uses a new build
#   TANDEM=FILE interop/packages.sh    uses this program
#   interop/packages.sh [WORD ...]     runs only the checks whose names have all these words
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "packages.sh needs root" >&2; exit 1; }
need cargo go python3
install_packages dpkg=dpkg rpm=rpm setpriv=util-linux systemd-analyze=systemd curl=curl openssl=openssl strip=binutils \
    umoci=umoci skopeo=skopeo debootstrap=debootstrap ip=iproute2 nft=nftables knotd=knot
install_python_packages python3 "$cache/venv" requirements.txt
command -v cargo-cyclonedx >/dev/null || cargo install --quiet --locked --debug cargo-cyclonedx
test -x "$cache/bin/pebble" || GOBIN="$cache/bin" go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1
export PEBBLE="$cache/bin/pebble"
build_tandem

# new_debian FOLDER [ARGUMENT ...]: makes a file system with Debian, unless it exists.
new_debian() {
    test ! -d "$1" || return 0
    local folder="$1" mirror release
    shift
    rm -rf --one-file-system "$folder.part"
    mkdir -p "$cache/debs"
    mirror="$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep --max-count 1 '/debian/*$')"
    release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
    # debootstrap mounts the kernel's file systems in the folder, where they must not stay if it is killed.
    unshare --mount debootstrap --cache-dir="$cache/debs" "$@" "$release" "$folder.part" "$mirror" >"$folder.log"
    mv "$folder.part" "$folder"
}

# The smallest Debian, for install.sh; and what Debian's installer or a provider makes, for the commands of the documents.
# Its apt has the packages that the documents install.
export BARE_DEBIAN="$cache/debian" FRESH_DEBIAN="$cache/fresh-debian"
new_debian "$BARE_DEBIAN" --variant=minbase --include=ca-certificates,curl,wget
new_debian "$FRESH_DEBIAN" --include=ca-certificates,curl,sudo
packages="$(cd packages && python3 pages.py operating.md services.md deploy.md install.md) ufw" # Ubuntu has ufw
if test "$packages" != "$(cat "$FRESH_DEBIAN.packages" 2>/dev/null)"; then
    chroot "$FRESH_DEBIAN" apt-get update -q
    # shellcheck disable=SC2086
    chroot "$FRESH_DEBIAN" apt-get install -qy --download-only $packages
    echo "$packages" >"$FRESH_DEBIAN.packages"
fi >"$cache/fresh-debian-packages.log"

in_own_namespaces 1500 "$cache/venv/bin/python" packages/check.py "$@"
