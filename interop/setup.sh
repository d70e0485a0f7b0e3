# The scripts of this folder source this file in their folder. It has what they share.
cache="$PWD/.cache"
mkdir -p "$cache/bin"
PATH="$PATH:/usr/sbin:/sbin" # where Debian puts some programs
export PYTHONPATH="$PWD"      # so that programs in folders find the modules of this one
export INTEROP_SCRIPT         # which names the folder of the script's own files
INTEROP_SCRIPT="$(basename "$0" .sh)"

# Runs a command while no other script of this folder does so: scripts that run at the same time share what is set up.
alone() {
    (
        flock 9
        "$@" 9>&- # a server that a package starts must not keep the lock
    ) 9>"$cache/setup.lock"
}

# Fails if one of these tools is missing.
need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 1; }
    done
}

# Installs the Debian packages of those programs and files that are missing. Each word is PROGRAM=PACKAGE or
# /FILE=PACKAGE.
install_packages() { alone install_missing_packages "$@"; }

install_missing_packages() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || test -f "${pair%%=*}" || missing+=("${pair#*=}")
    done
    test "${#missing[@]}" = 0 || {
        apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}"
    } >&2
}

# Makes a virtual environment with the packages of a file: PYTHON FOLDER FILE
install_python_packages() { alone make_environment "$@"; }

make_environment() {
    cmp -s "$3" "$2/requirements.txt" && return
    "$1" -m venv --clear "$2"
    # The file lists all packages, so that pip need not resolve any: curl_cffi asks for newer ones than it needs.
    "$2/bin/pip" install --quiet --no-deps -r "$3"
    cp "$3" "$2/requirements.txt"
}

# Builds the programs on quic-go.
build_quic_go() { alone build_programs_on_quic_go; }

build_programs_on_quic_go() {
    cd quic-go
    go build -o "$cache/bin/quic-go-get" ./get
    go build -o "$cache/bin/quic-go-origin" ./origin
    go build -o "$cache/bin/quic-go-connect-proxy" ./proxy
}

# Replaces this script by a program in mount and process namespaces of its own: what it mounts and starts vanishes with
# it, also if it is killed. SECONDS COMMAND [ARGUMENT ...]
in_own_namespaces() {
    MOUNTS_OF_CALLER="$(readlink /proc/self/ns/mnt)"
    export MOUNTS_OF_CALLER # so that the program can check that it has others
    local seconds="$1"
    shift
    exec timeout --signal TERM "$seconds" setpriv --pdeathsig KILL \
        unshare --mount --pid --fork --kill-child --mount-proc "$@"
}

# Builds tandem, unless TANDEM names a program.
build_tandem() {
    export TANDEM="${TANDEM:-}"
    test -z "$TANDEM" || return 0
    cargo build --quiet --release --bin tandem
    TANDEM="$(cargo metadata --format-version 1 --no-deps | python3 -c \
        'import json, sys; print(json.load(sys.stdin)["target_directory"])')/release/tandem"
}
