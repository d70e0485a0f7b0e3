"""CPU time per packet, echoes, and the set-up of flows: everything that runs through a standing tunnel of each contestant."""

import contextlib
import os
import sys

import bed

ECHO_LOAD_PPS = 52_083  # packets of 1200 bytes: 500 Mbit/s
ECHO_BYTES = 1200
SETUP_BYTES = 64
BURST = 16


def cases(given):
    """The runs of part `packets` in one round."""
    for rate in given.rates:
        for size in given.sizes:
            for burst in given.bursts:
                for direction in ("up", "down"):
                    for flows in given.flows:
                        yield {"rate": rate, "bytes": size, "burst": burst, "direction": direction, "flows": flows}


def turns(given, contestants):
    """What each contestant does in a round, one contestant after the other: a part, its parameters, and how to run it."""
    if "packets" in given.only:
        for case in cases(given):
            yield "packets", case, lambda tunnel, case=case: packets(tunnel, case, given.seconds)
    if "echo" in given.only:
        for beside in ("idle", "up", "down"):
            yield "echo", {"beside": beside}, lambda tunnel, beside=beside: echo(tunnel, beside, given.echoes)
    if "setup" in given.only:
        yield "setup", {}, lambda tunnel: tunnel.ask("setup", SETUP_BYTES, given.setups)


def packets(tunnel, case, seconds):
    count = max(int(case["rate"] * seconds), 16)
    words = [case[name] for name in ("direction", "flows", "bytes", "rate", "burst")]
    answer = tunnel.ask("packets", *words, count)
    proxy, client = answer.pop("cpu_ns")
    received = max(answer["received"], 1)
    loss = 1 - answer["received"] / answer["sent"]
    return answer | {
        "loss_percent": round(loss * 100, 3),
        "proxy_ns": round(proxy / received),
        "client_ns": round(client / received),
    }


def echo(tunnel, beside, count):
    answer = tunnel.ask("echo", beside, ECHO_BYTES, count, ECHO_LOAD_PPS)
    if "sent" in answer:
        loss = 1 - answer["received"] / answer["sent"]
        answer["loss_percent"] = round(loss * 100, 3)
    return answer


def rounds(given, contestants, write):
    """All rounds. Each round starts new tunnels, and runs each case through one tunnel after another."""
    if not any(turns(given, contestants)):
        return
    for number in range(1, given.rounds + 1):
        with contextlib.ExitStack() as stack:
            tunnels = [stack.enter_context(bed.Tunnel(one)) for one in contestants]
            for turn, (part, case, run) in enumerate(turns(given, contestants)):
                # Another contestant is the first each time.
                first = (turn + number) % len(tunnels)
                for tunnel in tunnels[first:] + tunnels[:first]:
                    name = tunnel.contestant.name
                    row = {"part": part, "round": number, "contestant": name, "load_average": round(os.getloadavg()[0], 2)}
                    try:
                        write(row | case | run(tunnel))
                    except bed.Failed as failure:
                        print(failure, file=sys.stderr)
                        write(row | case | {"failed": str(failure)})
                        with contextlib.suppress(bed.Failed):
                            tunnel.__exit__()
                            tunnel.set_up()
