# Lanes of steps, for `.ci/run`: the steps of a lane follow each other, and lanes run at the same time.
#
# What a step prints appears as one block when the step has ended. A step that fails ends its lane. The other lanes go
# on, so that one run shows all that is wrong.
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
trap 'kill "${lanes[@]}"; exit 1' INT TERM
lanes=()

# Runs a command as a step: TEXT COMMAND [ARGUMENT ...]
step() {
    local text="$1" began=$SECONDS status=0 log
    shift
    log="$(mktemp -p "$logs")"
    say "--- begins: $text"
    ("$@") </dev/null >"$log" 2>&1 &
    running=$!
    wait "$running" || status=$?
    {
        flock 8
        if [ "$status" = 0 ]; then say "=== ok, $((SECONDS - began)) s: $text"; else say "=== FAILED: $text"; fi
        cat "$log"
    } 8>"$logs/printing"
    [ "$status" = 0 ] || {
        # The whole log may be thousands of lines above the last ones.
        echo "$lane: $text" >>"$logs/failed"
        tail -n 25 "$log" | sed 's/^/    /' >>"$logs/failed"
        exit 1
    }
    rm "$log"
}

say() { echo "$(date -u +%H:%M:%S) [$lane] $*"; }

# Starts a function as a lane, whose name is that of the function: FUNCTION [NICENESS]
start_lane() {
    (
        lane="$1" running=""
        renice --priority "${2:-0}" "$BASHPID" >/dev/null
        set -m # each step is a process group, which can be ended as a whole
        trap '[ -z "$running" ] || kill -- "-$running"; exit 1' TERM
        # Another lane may wait for what this one has not reached.
        trap 'touch "$logs/ended-$lane"' EXIT
        "$1"
    ) &
    lanes+=($!)
}

# Says that what has this name is there, for lanes that need it.
provide() { touch "$logs/has-$1"; }

# Waits until another lane provides something: NAME LANE. Ends this lane if the other one has ended without it.
await() {
    until [ -e "$logs/ended-$2" ] || [ -e "$logs/has-$1" ]; do sleep 1; done
    [ -e "$logs/has-$1" ] || {
        echo "$lane: its steps need $1, which $2 has not provided" >>"$logs/failed"
        exit 1
    }
}

# Waits for all lanes, and lists the steps that failed. It fails if one did.
finish_lanes() {
    local pid status=0
    for pid in "${lanes[@]}"; do wait "$pid" || status=1; done
    lanes=()
    [ ! -e "$logs/failed" ] || sed 's/^[^ ]/FAILED  &/' "$logs/failed"
    return "$status"
}
