"""CPU time per packet, and echoes, through a standing tunnel of each contestant."""

import itertools

import bed
from rounds import Part

DIRECTIONS = ("up", "down")
CENTRE = {"rate": 50_000, "bytes": 1200, "burst": 16, "flows": 16}
LARGEST = "largest"
# One factor at a time around the centre.
AROUND = [
    *({"rate": rate, "burst": burst} for rate in (2_000, 10_000, 50_000, 100_000, 150_000) for burst in (1, 16)),
    {"bytes": 64},
    {"bytes": LARGEST},
    {"flows": 1},
    {"flows": 256},
]
# Corners: a game or a call alone, many of those, one VPN, one fast program, and the most packets.
CORNERS = [
    {"rate": 2_000, "bytes": 64, "burst": 1, "flows": 1},
    {"rate": 10_000, "bytes": 64, "burst": 1, "flows": 256},
    {"rate": 10_000, "bytes": LARGEST, "burst": 1, "flows": 1},
    {"rate": 100_000, "bytes": 1200, "burst": 1, "flows": 1},
    {"rate": 150_000, "bytes": 64, "burst": 16, "flows": 256},
]
QUICK = [{}, {"rate": 2_000, "burst": 1}, {"rate": 150_000}, {"bytes": 64}, {"bytes": LARGEST}, {"flows": 256}]
ECHO_LOAD_PPS = 52_083  # packets of 1200 bytes: 500 Mbit/s
ECHO_BYTES = 1200
LATE_LIMIT_US = 1000
OVERHEAD = 0.2  # seconds of a run before its first packet and after its last one


def cases(given):
    """The design, or all combinations of what was given."""
    axes = {"rate": given.rates, "bytes": given.sizes, "burst": given.bursts, "flows": given.flows}
    if any(axes.values()):
        values = [axes[name] or [centre] for name, centre in CENTRE.items()]
        chosen = [dict(zip(CENTRE, them)) for them in itertools.product(*values)]
    else:
        chosen = QUICK if given.quick else AROUND + CORNERS
    both_ways = [CENTRE | case | {"direction": direction} for case in chosen for direction in DIRECTIONS]
    return [case for number, case in enumerate(both_ways) if case not in both_ways[:number]]


class Packets(Part):
    name = "packets"
    site = bed.Tunnel

    def __init__(self, given):
        super().__init__(given.rounds, cases(given))
        self.duration = given.seconds

    def seconds(self, contestant, case):
        return self.duration + OVERHEAD

    def run(self, tunnel, case):
        answer = carry(tunnel, case, self.duration)
        # Only a client of the contestant's own make is compared.
        if tunnel.contestant is bed.QUICHE:
            del answer["client_ns"]
        return answer


def carry(tunnel, case, seconds):
    """One run with packets: what was lost, and what it cost."""
    size = tunnel.largest if case["bytes"] == LARGEST else case["bytes"]
    count = max(int(case["rate"] * seconds), 16)
    answer = tunnel.ask("packets", case["direction"], case["flows"], size, case["rate"], case["burst"], count)
    proxy, client = answer.pop("cpu_ns")
    received = max(answer["received"], 1)
    costs = {"payload_bytes": size, "proxy_ns": round(proxy / received), "client_ns": round(client / received)}
    return judged(answer) | costs


def judged(answer):
    """With its loss, and whether the generator was late."""
    loss = 1 - answer["received"] / max(answer["sent"], 1)
    return answer | {"loss_percent": round(loss * 100, 3), "late": int(answer["late_p99_us"] > LATE_LIMIT_US)}


class Echo(Part):
    name = "echo"
    site = bed.Tunnel

    def __init__(self, given):
        super().__init__(given.rounds, [{"beside": beside} for beside in ("idle", *DIRECTIONS)])
        self.count = given.echoes

    def seconds(self, contestant, case):
        return self.count * 0.0015 + (0 if case["beside"] == "idle" else 1)

    def run(self, tunnel, case):
        answer = tunnel.ask("echo", case["beside"], ECHO_BYTES, self.count, ECHO_LOAD_PPS)
        return judged(answer) if "sent" in answer else answer
