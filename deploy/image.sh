#!/usr/bin/env bash
# Makes a container image with nothing but a program and the CA certificates that it trusts, without root and without a
# daemon. It needs umoci and skopeo. `docker load -i FILE` and `podman load -i FILE` read the file.
#   deploy/image.sh PROGRAM VERSION FILE
set -euo pipefail
usage="usage: deploy/image.sh PROGRAM VERSION FILE"
program="$(realpath "${1:?$usage}")" version="${2:?$usage}" file="$(realpath -m "${3:?$usage}")"
cd "$(dirname "$0")/.."

authorities=/etc/ssl/certs/ca-certificates.crt # of Debian's ca-certificates
test -s "$authorities" || { echo "$authorities is missing: install ca-certificates" >&2; exit 1; }
time="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
created="$(date --utc --date "$time" +%FT%TZ)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

root="$scratch/root"
install -D -m 755 "$program" "$root/tandem"
install -D -m 644 "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -m 1777 "$root/tmp"
chmod 755 "$root" "$root/etc" "$root/etc/ssl" "$root/etc/ssl/certs"
find "$root" -exec touch --date "$time" {} +

layout="$scratch/layout"
image="$layout:$version"
umoci init --layout "$layout"
umoci new --image "$image"
umoci insert --rootless --image "$image" --history.created "$created" "$root" /
# The user is a number, so that Kubernetes can see that it is not root. A container listens on a port above 1023.
umoci config --image "$image" --created "$created" --history.created "$created" \
    --config.user 65532:65532 --config.exposedports 8443/udp \
    --config.entrypoint /tandem --config.cmd proxy --config.cmd --config --config.cmd /etc/tandem/proxy.toml \
    --config.label org.opencontainers.image.title=tandem \
    --config.label "org.opencontainers.image.version=$version" \
    --config.label "org.opencontainers.image.licenses=MIT OR Apache-2.0"
# This form of archive is read by Docker of any age; only newer ones read the layout of OCI. It is not compressed,
# because the skopeo of Debian 12 does not read it then.
skopeo --insecure-policy copy --quiet "oci:$image" "docker-archive:$scratch/image.tar:tandem:$version"
mv "$scratch/image.tar" "$file"
