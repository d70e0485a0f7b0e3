#!/bin/sh
# Stands in for the script at sh.rustup.rs. Its cargo compiles nothing: it installs the program of the test, if the
# arguments are right and what a build needs is there.
set -eu
test "$*" = -y || { echo "the stand-in cannot ask: sh -s -- -y" >&2; exit 1; }
mkdir -p "$HOME/.cargo/bin"
cat >"$HOME/.cargo/env" <<'END'
export PATH="$HOME/.cargo/bin:$PATH"
END
cat >"$HOME/.cargo/bin/cargo" <<'END'
#!/bin/sh
set -eu
test "$1 $2 $4 $6" = "install --path --root --profile" || { echo "the stand-in does not know cargo $*" >&2; exit 1; }
grep -q '^name = "tandem"' "$3/Cargo.toml"
grep -q "^\[profile\.$7\]" Cargo.toml
command -v cc make >/dev/null
install -D -m 755 /stand-ins/tandem "$5/bin/tandem"
END
chmod 755 "$HOME/.cargo/bin/cargo"
