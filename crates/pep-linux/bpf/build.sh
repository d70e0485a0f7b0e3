#!/usr/bin/env bash
# Builds the BPF object from its source. With --check it changes nothing, and fails if the instructions of the object
# that is checked in are not those of the source. Needs clang, llvm and the headers of libbpf and Linux:
#   apt-get install clang llvm libbpf-dev linux-libc-dev
set -euo pipefail
cd "$(dirname "$0")"

built=$(mktemp)
trap 'rm -f "$built"' EXIT
clang -O2 -g -target bpf -mcpu=v3 -Wall -Werror -fdebug-prefix-map="$PWD"=. \
    -I"/usr/include/$(uname -m)-linux-gnu" -c mirror.bpf.c -o "$built"
llvm-strip -g "$built"

instructions() { llvm-objdump -d --no-show-raw-insn "$1" | tail -n +3; }

if [[ ${1:-} == --check ]]; then
    diff <(instructions mirror.bpf.o) <(instructions "$built") ||
        { echo "mirror.bpf.o is not what mirror.bpf.c says: run crates/pep-linux/bpf/build.sh" >&2; exit 1; }
    echo "mirror.bpf.o is what mirror.bpf.c says"
else
    cat "$built" >mirror.bpf.o
fi
