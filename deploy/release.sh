#!/usr/bin/env bash
# Makes all files of a release for x86_64 Linux in a folder, target/release-VERSION unless you name one. CONTRIBUTING.md
# says how a release is cut.
#   deploy/release.sh [FOLDER]                  builds the program and takes the committed sources
#   deploy/release.sh --program FILE [FOLDER]   for tests: takes this program, and the sources as they are
# It needs two variables:
#   TANDEM_RELEASE_KEY  file with the private key that signs, an ECDSA key for P-256 in PEM, such as that of
#                       openssl ecparam -name prime256v1 -genkey -noout
#   TANDEM_RELEASE_URL  where users will find the files of this version, such as https://tandem.example/0.2.0
set -euo pipefail
program="" folder=""
while test $# -gt 0; do
    case "$1" in
    --program) program="$(realpath "${2:?--program needs a file}")" && shift 2 ;;
    -*) sed -n '2,/^set /s/^# \?//p' "$0" >&2 && exit 2 ;;
    *) folder="$(realpath -m "$1")" && shift ;;
    esac
done
cd "$(dirname "$0")/.."

fail() { printf 'release.sh: %s\n' "$*" >&2; exit 1; }
metadata() {
    cargo metadata --format-version 1 --no-deps | python3 -c "import json, sys; m = json.load(sys.stdin); print($1)"
}

# What is missing, all at once.
missing=()
want() { command -v "$1" >/dev/null || missing+=("$1 ($2)"); }
want cargo "rustup"; want cargo-cyclonedx "cargo install --locked cargo-cyclonedx"; want go "1.25 or newer: go.dev/dl"
want openssl "Debian: openssl"; want umoci "Debian: umoci"; want skopeo "Debian: skopeo"; want python3 "Debian: python3"
test -n "$program" || want musl-gcc "Debian: musl-tools"
test -n "${TANDEM_RELEASE_KEY:-}" || missing+=("TANDEM_RELEASE_KEY (a file with the private key that signs)")
test -n "${TANDEM_RELEASE_URL:-}" || missing+=("TANDEM_RELEASE_URL (where users will find the files)")
test "${#missing[@]}" = 0 || fail "missing: $(printf '%s; ' "${missing[@]}")see the first lines of this script"
key="$TANDEM_RELEASE_KEY" url="${TANDEM_RELEASE_URL%/}"
[[ "$url" =~ ^https?://[A-Za-z0-9.:_/~-]+$ ]] || fail "TANDEM_RELEASE_URL is not a plain URL: $url"
public="$(openssl pkey -in "$key" -pubout)" || fail "$key has no private key"
openssl pkey -in "$key" -noout -text | grep -q "prime256v1" || fail "$key is not an ECDSA key for P-256"
test "$(uname -m)" = x86_64 || fail "install.sh only knows x86_64"

VERSION="$(metadata 'next(p["version"] for p in m["packages"] if p["name"] == "tandem")')"
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export VERSION SOURCE_DATE_EPOCH
folder="${folder:-$(metadata 'm["target_directory"]')/release-$VERSION}"
test ! -e "$folder" || fail "$folder exists already"
notes="$(python3 deploy/package/notes.py CHANGELOG.md "$VERSION")"
if test -z "$program"; then
    test -z "$(git status --porcelain)" || fail "some files differ from the last commit: see git status"
    program="$(deploy/program.sh)"
    ! readelf --program-headers "$program" | grep -q INTERP || fail "$program is not static"
fi

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
files="$scratch/files"
mkdir "$files"
TANDEM="$program" deploy/package.sh "$files"
deploy/image.sh "$program" "$VERSION" "$files/tandem-$VERSION-x86_64-image.tar"
deploy/package/sbom.sh "$files/tandem-$VERSION-sbom.cdx.json"
printf '%s\n' "$notes" >"$files/NOTES.md"
python3 -c 'import sys; text = sys.stdin.read()
for name, value in zip(("@VERSION@", "@URL@", "@KEY@"), sys.argv[1:]): text = text.replace(name, value)
sys.stdout.write(text)' "$VERSION" "$url" "$public" <deploy/install.sh >"$files/install.sh"
chmod 644 "$files"/*
(cd "$files" && sha256sum -- * >"$scratch/SHA256SUMS")
openssl dgst -sha256 -sign "$key" -out "$files/SHA256SUMS.sig" "$scratch/SHA256SUMS"
mv "$scratch/SHA256SUMS" "$files"
mkdir -p "$(dirname "$folder")"
mv "$files" "$folder"
ls -l "$folder"
