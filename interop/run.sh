#!/usr/bin/env bash
# Runs every combination of client, proxies and origin, chains of three proxies in each mode, programs with TCP
# connections through tunnels, and installed programs that log in. It first installs and builds the programs that they need.
#   interop/run.sh [WORD ...]     runs only the pairs whose line has all these words
#   interop/run.sh --list         lists the pairs
#   TANDEM=FILE interop/run.sh    uses this program instead of a new build
# The last line is "N passed, N failed". The run fails if a prerequisite is missing and cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

# Prints the path of a Python that is new enough for picoquic's package. Debian 12 has none, but pyenv may.
newer_python() {
    local python
    for python in python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3 python3.{12,13,14}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    echo "Python 3.12 or newer is missing" >&2
    return 1
}

need cargo go python3
install_packages firefox-esr=firefox-esr chromium=chromium gtlsclient=ngtcp2-client gtlsserver=ngtcp2-server \
    javac=openjdk-17-jdk-headless mvn=maven curl=curl git=git ssh=openssh-client sshd=openssh-server ncat=ncat \
    redis-server=redis-server
install_python_packages python3 "$cache/venv" requirements.txt
python="$(newer_python)"
install_python_packages "$python" "$cache/picoquic" picoquic/requirements.txt

build_quic_go
for folder in masque-go/*; do
    (
        cd "$folder"
        for program in client proxy; do
            go build -o "$cache/bin/masque-go-$program-${folder#*/}" "github.com/quic-go/masque-go/cmd/$program"
            # The newest one, which comes last, is the one that the suite uses.
            ln -sf "masque-go-$program-${folder#*/}" "$cache/bin/masque-go-$program"
        done
    )
done
(cd connect-ip-go && go build -o "$cache/bin/connect-ip-go" .)
(cd mihomo && go build -o "$cache/bin/mihomo" github.com/metacubex/mihomo)
cargo build --quiet --locked --manifest-path h3/Cargo.toml --target-dir "$cache/h3"
cp "$cache/h3/debug/interop-h3" "$cache/bin/"
if ! cmp -s flupke/pom.xml "$cache/flupke/pom.xml"; then
    mvn --quiet --batch-mode -Dstyle.color=never --file flupke/pom.xml \
        dependency:copy-dependencies -DoutputDirectory="$cache/flupke/lib"
    cp flupke/pom.xml "$cache/flupke/"
fi
javac -d "$cache/flupke/classes" -cp "$cache/flupke/lib/*" flupke/Peer.java
build_tandem

exec "$cache/venv/bin/python" run.py "$@"
