#!/usr/bin/env bash
# Lists what the program is made of, as CycloneDX in JSON, by cargo-cyclonedx.
#   deploy/package/sbom.sh FILE
set -euo pipefail
file="$(realpath -m "${1:?usage: deploy/package/sbom.sh FILE}")"
cd "$(dirname "$0")/../.."

# cargo-cyclonedx writes beside the manifest of each crate, so it gets a copy.
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
git ls-files -z -- Cargo.toml Cargo.lock crates | tar --create --null --files-from - | tar --extract --directory "$copy"
(
    cd "$copy"
    cargo cyclonedx --quiet --manifest-path crates/cli/Cargo.toml --format json --spec-version 1.5 --no-build-deps \
        --target x86_64-unknown-linux-musl --override-filename sbom
)
# The folder of the copy names crates of this project.
sed "s|$copy|/tandem|g" "$copy/crates/cli/sbom.json" >"$file"
