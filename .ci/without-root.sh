#!/usr/bin/env bash
# Runs the test programs that `cargo test` has built once more: as a user without root, whose home cannot be written, and
# who has set variables that tests must not read. As root, such tests would not notice that they write where others may
# not, or that they read what others may not.
set -euo pipefail
cd "$(dirname "$0")/.."

# The tests of these crates open no socket and start no program (`crates/cli/tests/tidy.rs` holds that), so that another
# user changes nothing for them. They take most of the time.
only_compute="units wire congestion netem pep node lab"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/home" "$folder/tmp"
chmod 755 "$folder"
chmod 555 "$folder/home"
chmod 777 "$folder/tmp"

# One line for each program: where its package is, and the program.
cargo test --quiet --workspace --no-run --message-format=json | python3 -c '
import json, os, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["profile"]["test"]:
        print(os.path.dirname(made["manifest_path"]), made["executable"])
' | sort >"$folder/programs"

cat >"$folder/run" <<'END'
#!/usr/bin/env bash
failed=0
while read -r package program; do
    cd "$package" && echo "$program" || exit 1
    timeout 600 "$program" </dev/null || { echo "FAILED as $(id -un): $program"; failed=1; }
done
exit $failed
END
chmod 755 "$folder/run"

for crate in $only_compute; do
    sed -i "\#/crates/$crate #d" "$folder/programs"
done
test -s "$folder/programs" || { echo "no test program is built" >&2; exit 1; }

# None of these may change what a test does. The locale does not even exist on most machines.
variables=(
    "PATH=$PATH" "TMPDIR=$folder/tmp" "HOME=$folder/home" XDG_CONFIG_HOME=/nonexistent RUST_BACKTRACE=0
    COLUMNS=37 LANG=de_DE.UTF-8 LC_ALL=tr_TR.UTF-8 TZ=Asia/Kathmandu NO_COLOR=1 CLICOLOR_FORCE=1 TERM=dumb
    RUST_LOG=trace TANDEM_LOG_FORMAT=none TANDEM_VIA=none TANDEM_LISTEN=none TANDEM_MODE=none
    HTTPS_PROXY=http://127.0.0.1:1 ALL_PROXY=socks5h://127.0.0.1:1 SSL_CERT_FILE=/nonexistent SSL_CERT_DIR=/nonexistent
)
run=(env -i "${variables[@]}" bash "$folder/run")

if test "$(id -u)" != 0; then
    "${run[@]}" <"$folder/programs"
    exit
fi

# A user without root reaches no checkout below a closed folder such as /root. In a mount namespace of its own, an empty folder
# that holds only the checkout takes the place of the closed one.
closed=
path=$PWD
while test "$path" != /; do
    path=$(dirname "$path")
    setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$path" || closed=$path
done
export closed checkout=$PWD
unshare --mount bash -euc '
    if test -n "$closed"; then
        mkdir "$0/checkout"
        mount --bind "$checkout" "$0/checkout"
        mount -t tmpfs -o mode=755 tmpfs "$closed"
        mkdir -p "$checkout"
        mount --move "$0/checkout" "$checkout"
    fi
    shift
    exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"
' "$folder" -- "${run[@]}" <"$folder/programs"
