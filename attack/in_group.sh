#!/bin/sh
# Runs a program in a control group of its own with a memory limit, below the group of this process (version
# 1 or 2), as systemd's MemoryMax= does. It needs root, and an empty group stays behind (they cost nothing).
#   attack/in_group.sh BYTES PROGRAM [ARGUMENT...]
#   attack/in_group.sh --check      fails if that is not possible here
set -eu
# Version 1 has a line "N:memory:/path", version 2 has "0::/path".
own_v1=$(sed -n 's/^[0-9]*:\([a-z_,]*,\)\{0,1\}memory\(,[a-z_,]*\)\{0,1\}:\(.*\)$/\3/p' /proc/self/cgroup)
own_v2=$(sed -n 's/^0::\(.*\)$/\1/p' /proc/self/cgroup)
if [ -n "$own_v1" ]; then
    parent="/sys/fs/cgroup/memory$own_v1" limit=memory.limit_in_bytes swap=memory.memsw.limit_in_bytes
else
    # A group with processes may not have groups below it with limits.
    parent="/sys/fs/cgroup$(dirname "$own_v2")" limit=memory.max swap=memory.swap.max
    echo +memory > "$parent/cgroup.subtree_control" 2> /dev/null || true
fi
group="$parent/tandem-attack/group"
mkdir -p "$parent/tandem-attack" 2> /dev/null || { echo "no control group can be made in $parent" >&2; exit 1; }
[ -n "$own_v1" ] || echo +memory > "$parent/tandem-attack/cgroup.subtree_control" 2> /dev/null || true
mkdir -p "$group"
[ -w "$group/$limit" ] || { echo "there is no $group/$limit" >&2; exit 1; }
[ "$1" != --check ] || exit 0
# The limit stands on the outer group: the least of a path counts.
echo "$1" > "$parent/tandem-attack/$limit"
# Without swap the limit is one on memory. Not every kernel counts swap.
[ ! -w "$parent/tandem-attack/$swap" ] || echo 0 > "$parent/tandem-attack/$swap" 2> /dev/null || true
echo $$ > "$group/cgroup.procs"
shift
exec "$@"
