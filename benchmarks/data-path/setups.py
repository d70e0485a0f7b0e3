"""How long it takes until the first packet has come back."""

import json
import socket
import time

import bed
from common import Failed, on_cpu, run_timed, start, stop
from rounds import Part

BYTES = 64
AGAIN = 0.2  # seconds after which the first packet is sent again
TRIES = 25
TIME_LIMIT = 60  # seconds for all connections of one run
PER_SETUP = {"cold": 0.05, "full": 0.015, "resumed": 0.015, "warm": 0.002}  # seconds, estimates


class Setup(Part):
    """cold: a new process of the contestant's own client, and its connection. full, resumed: a new connection of the client for
    all, with and without a full TLS handshake. warm: a new flow in a tunnel that stands."""

    name = "setup"
    site = bed.Tunnel

    def __init__(self, given):
        super().__init__(given.rounds, [{"kind": kind} for kind in PER_SETUP])
        self.count = given.setups

    def takes(self, contestant, case):
        if case["kind"] in ("full", "resumed"):
            return bool(contestant.protocol)
        return contestant is not bed.QUICHE  # which has no client of its own

    def seconds(self, contestant, case):
        return self.count * PER_SETUP[case["kind"]]

    def run(self, tunnel, case):
        kind = case["kind"]
        if kind == "warm":
            return tunnel.ask("setup", BYTES, self.count)
        if kind == "cold":
            return cold(tunnel, self.count)
        command = tunnel.contestant.shared_client(tunnel.address, "setup", kind, self.count, tunnel.targets[1])
        with on_cpu(bed.GENERATOR_CPU):
            _, out = run_timed(command, TIME_LIMIT)
        return json.loads(out)


def cold(tunnel, count):
    command = tunnel.contestant.own_client(tunnel.address, tunnel.targets)
    times, lost = [], 0
    for _ in range(count):
        begin = time.perf_counter()
        process, entrances, _ = start(command, len(tunnel.targets), bed.GENERATOR_CPU)
        try:
            lost += first_echo(entrances[1])
            times.append((time.perf_counter() - begin) * 1e6)
        finally:
            stop([process])
    times.sort()
    return {"p50_us": round(times[len(times) // 2], 1), "p99_us": round(times[len(times) * 99 // 100], 1), "lost": lost}


def first_echo(entrance):
    """Sends until an answer has come. Returns how many packets were not answered."""
    host, port = entrance.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as local:
        local.connect((host, int(port)))
        local.settimeout(AGAIN)
        for lost in range(TRIES):
            try:
                local.send(bytes(BYTES))
                local.recv(2048)
                return lost
            except (TimeoutError, ConnectionRefusedError):
                pass
    raise Failed(f"nothing comes back through {entrance}")
