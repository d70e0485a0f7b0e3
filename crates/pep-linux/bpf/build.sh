#!/usr/bin/env bash
# Builds the BPF objects from their sources. With --check it changes nothing, and fails if the instructions of an object
# that is checked in are not those of its source. Needs clang, llvm and the headers of libbpf and Linux:
#   apt-get install clang llvm libbpf-dev linux-libc-dev
set -euo pipefail
cd "$(dirname "$0")"

built=$(mktemp)
trap 'rm -f "$built"' EXIT

instructions() { llvm-objdump -d --no-show-raw-insn "$1" | tail -n +3; }

for name in mirror tell; do
    clang -O2 -g -target bpf -mcpu=v3 -Wall -Werror -fdebug-prefix-map="$PWD"=. \
        -I"/usr/include/$(uname -m)-linux-gnu" -c "$name.bpf.c" -o "$built"
    llvm-strip -g "$built"
    if [[ ${1:-} == --check ]]; then
        diff <(instructions "$name.bpf.o") <(instructions "$built") ||
            { echo "$name.bpf.o is not what $name.bpf.c says: run crates/pep-linux/bpf/build.sh" >&2; exit 1; }
        echo "$name.bpf.o is what $name.bpf.c says"
    else
        cat "$built" >"$name.bpf.o"
    fi
done
