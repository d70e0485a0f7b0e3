#!/usr/bin/env bash
# Makes a release and checks it: packages are installed, upgraded and removed in a copy of this machine's file system;
# install.sh runs in a bare Debian, and refuses what was not signed; the container image runs. The commands of the pages
# for operators run as they are written. All is thrown away. It needs root, and first installs what it needs.
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

# The smallest Debian, for install.sh. debootstrap mounts the kernel's file systems in the folder, where they must not stay
# if it is killed.
export BARE_DEBIAN="$cache/debian"
if ! test -d "$BARE_DEBIAN"; then
    rm -rf --one-file-system "$BARE_DEBIAN.part"
    mirror="$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep --max-count 1 '/debian/*$')"
    unshare --mount debootstrap --variant=minbase --include=ca-certificates,curl,wget \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$BARE_DEBIAN.part" "$mirror" >"$cache/debootstrap.log"
    mv "$BARE_DEBIAN.part" "$BARE_DEBIAN"
fi

# What Debian's installer makes, with sudo, as providers have it, for the commands of the documents. Its apt has the
# packages that these install, and needs no network.
export FRESH_DEBIAN="$cache/fresh-debian"
packages="$(cd packages && python3 pages.py operating.md services.md deploy.md install.md) ufw" # Ubuntu has ufw
if test "$packages" != "$(cat "$FRESH_DEBIAN/packages" 2>/dev/null)"; then
    rm -rf --one-file-system "$FRESH_DEBIAN"
    cp -a "$BARE_DEBIAN" "$FRESH_DEBIAN"
    cp /etc/resolv.conf "$FRESH_DEBIAN/etc"
    PACKAGES="$packages" unshare --mount bash -euc '
        export DEBIAN_FRONTEND=noninteractive
        mount -t proc proc "$0/proc"
        chroot "$0" apt-get update -q
        chroot "$0" apt-get install -qy --no-install-recommends "~pimportant" sudo
        chroot "$0" apt-get install -qy --download-only $PACKAGES' "$FRESH_DEBIAN" >"$cache/fresh-debian.log" 2>&1
    echo "$packages" >"$FRESH_DEBIAN/packages"
fi

in_own_namespaces 1500 "$cache/venv/bin/python" packages/check.py "$@"
