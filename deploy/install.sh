#!/bin/sh
# Installs Tandem @VERSION@ on x86_64 Linux: downloads the program, checks its signature, and copies one file.
#   curl -fsSL @URL@/install.sh | sh
# Root gets /usr/local/bin/tandem, and others ~/.local/bin/tandem.
#   TANDEM_FOLDER=FOLDER  installs into another folder
#   TANDEM_URL=URL        downloads from another place, which cannot change the program
# It needs curl or wget, and openssl, which comes with the CA certificates of most systems.
set -eu
umask 022

# Whoever has the private key to it has signed the checksums.
key='@KEY@'

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    echo "install.sh: nothing was installed" >&2
    exit 1
}

# download NAME: brings a file of the release into this folder.
download() {
    if command -v curl >/dev/null; then
        curl --fail --silent --show-error --location --connect-timeout 30 --output "$1" "$url/$1"
    else
        wget -q -T 30 -O "$1" "$url/$1"
    fi || fail "$url/$1 could not be downloaded completely"
}

# The shell reads all of this before it runs the last line, so that half of a script does nothing.
main() {
    url="${TANDEM_URL:-@URL@}"
    name="tandem-@VERSION@-x86_64-linux"
    machine="$(uname -s) $(uname -m)"
    test "$machine" = "Linux x86_64" || fail "there is no program for $machine; build it from source"
    command -v curl >/dev/null || command -v wget >/dev/null || fail "curl or wget is missing"
    for tool in openssl sha256sum tar gzip mktemp; do
        command -v "$tool" >/dev/null || fail "$tool is missing; install the package that has it, and try again"
    done
    if test -n "${TANDEM_FOLDER:-}"; then folder="$TANDEM_FOLDER"
    elif test "$(id -u)" = 0; then folder=/usr/local/bin
    else folder="${HOME:?}/.local/bin"; fi
    case "$folder" in /*) ;; *) folder="$PWD/$folder" ;; esac

    scratch="$(mktemp -d)"
    new=
    trap 'rm -rf "$scratch" "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    cd "$scratch"
    download SHA256SUMS
    download SHA256SUMS.sig
    printf '%s\n' "$key" >key.pem
    openssl dgst -sha256 -verify key.pem -signature SHA256SUMS.sig SHA256SUMS >/dev/null 2>&1 ||
        fail "the signature of $url/SHA256SUMS is wrong; do not use this release"
    grep "^[0-9a-f]\{64\}  $name\.tar\.gz\$" SHA256SUMS >expected ||
        fail "the signed checksums of $url have no $name.tar.gz: they are of another version"
    download "$name.tar.gz"
    sha256sum -c expected >/dev/null 2>&1 ||
        fail "$name.tar.gz is not the file that was signed: it was changed, or the download was cut"
    tar -xzf "$name.tar.gz" "$name/bin/tandem" || fail "$name.tar.gz could not be unpacked"
    "$name/bin/tandem" --version >version 2>&1 || fail "the program does not run here: $(cat version)"

    mkdir -p "$folder" || fail "$folder could not be made"
    new="$(mktemp "$folder/.tandem.XXXXXX")" || fail "$folder cannot be written"
    cp "$name/bin/tandem" "$new" && chmod 755 "$new" && mv -f "$new" "$folder/tandem" ||
        fail "$folder/tandem could not be written"
    echo "$(cat version) is installed: $folder/tandem"
    case ":$PATH:" in *":$folder:"*) ;; *) echo "$folder is not in PATH: run $folder/tandem, or add it" ;; esac
}

main "$@"
