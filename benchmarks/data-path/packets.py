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
IDLE = {"rate": "idle", "bytes": 1200, "burst": "-", "direction": "-", "flows": 1}
# What bounds, and contestants with one setting changed, are measured in, when there is no other choice of cases.
FOCUS = {"rate": (10_000, 50_000, 100_000), "bytes": (1200,), "burst": (1, 16), "flows": (16,)}
ECHO_LOAD_PPS = 52_083  # packets of 1200 bytes: 500 Mbit/s
ECHO_BYTES = 1200
ECHO_PAUSE_US = 1000  # between an answer and the next echo
ECHOES_OF_ROW = 80  # of one run of part `packets`
LATE_LIMIT_US = 1000
OVERHEAD = 0.1  # seconds of a run before its first packet and after its last one
ECHO_SECONDS = 0.3  # of the echoes beside the load of a run


def axes_of(given):
    return {"rate": given.rates, "bytes": given.sizes, "burst": given.bursts, "flows": given.flows}


def cases(given):
    """The design, or all combinations of what was given."""
    axes = axes_of(given)
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
        super().__init__(given.rounds, [IDLE, *cases(given)])
        self.duration = given.seconds
        self.designed = not any(axes_of(given).values())

    def takes(self, contestant, case):
        in_focus = case is IDLE or all(case[name] in them for name, them in FOCUS.items())
        return in_focus or not (contestant.parts and self.designed)

    def is_harder(self, case, other):
        if case is IDLE or case["rate"] <= other["rate"]:
            return False
        alike = all(case[name] == other[name] for name in ("burst", "direction"))
        return alike and case["flows"] >= other["flows"] and by_size(case) >= by_size(other)

    def seconds(self, contestant, case):
        return (0 if case is IDLE else self.duration + OVERHEAD) + ECHO_SECONDS

    def run(self, tunnel, case):
        if case is IDLE:
            return echoes(tunnel, ECHOES_OF_ROW)
        answer = carry(tunnel, case, self.duration)
        # After the costs, and with the same load: beside it, echoes would be a share of what is measured.
        beside = echoes(tunnel, ECHOES_OF_ROW, case | {"bytes": answer["payload_bytes"]})
        answer |= {name: beside[name] for name in ("p50_us", "p99_us", "lost") if name in beside}
        # Only a client of the contestant's own make is compared.
        if tunnel.contestant is bed.QUICHE:
            del answer["client_ns"]
        return answer


def by_size(case):
    return bed.TOO_LARGE if case["bytes"] == LARGEST else case["bytes"]


def carry(tunnel, case, seconds):
    """One run with packets: what was lost, and what it cost."""
    size = tunnel.largest if case["bytes"] == LARGEST else case["bytes"]
    count = max(int(case["rate"] * seconds), 16)
    answer = tunnel.ask("packets", case["direction"], case["flows"], size, case["rate"], case["burst"], count)
    proxy, client = answer.pop("cpu_ns")
    received = max(answer["received"], 1)
    costs = {"payload_bytes": size, "proxy_ns": round(proxy / received), "client_ns": round(client / received)}
    return judged(answer) | costs


def echoes(tunnel, count, load=None):
    """Echoes on a flow of their own, one after the other: alone, or beside a load."""
    beside = [load[name] for name in ("direction", "flows", "bytes", "rate", "burst")] if load else []
    return tunnel.ask("echo", ECHO_BYTES, count, ECHO_PAUSE_US, *beside)


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
        return self.count * 0.0015 + (0 if case["beside"] == "idle" else 0.2)

    def run(self, tunnel, case):
        if case["beside"] == "idle":
            return echoes(tunnel, self.count)
        load = {"direction": case["beside"], "flows": 1, "bytes": ECHO_BYTES, "rate": ECHO_LOAD_PPS, "burst": 1}
        return judged(echoes(tunnel, self.count, load))
