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
    umoci=umoci skopeo=skopeo debootstrap=debootstrap
command -v cargo-cyclonedx >/dev/null || cargo install --quiet --locked --debug cargo-cyclonedx
build_tandem

export BARE_DEBIAN="$cache/debian"
if ! test -d "$BARE_DEBIAN"; then
    rm -rf --one-file-system "$BARE_DEBIAN.part"
    mirror="$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep --max-count 1 '/debian/*$')"
    # debootstrap mounts the kernel's file systems in the folder, where they must not stay if it is killed.
    unshare --mount debootstrap --variant=minbase --include=ca-certificates,curl,wget \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$BARE_DEBIAN.part" "$mirror" >"$cache/debootstrap.log"
    mv "$BARE_DEBIAN.part" "$BARE_DEBIAN"
fi

in_own_namespaces 1500 python3 packages/check.py "$@"
