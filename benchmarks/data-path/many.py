"""Many client connections into one proxy. One client process speaks to the proxies of all contestants, so that only the
proxies are compared."""

import contextlib

import bed
from common import cpu_of_threads
import packets
from rounds import Part

# (connections, flows, burst)
DESIGN = [
    (1, 256, 16), (16, 256, 16), (256, 256, 16), (256, 256, 1), (256, 4096, 16), (1000, 1000, 16), (16, 10_000, 16),
    (10_000, 10_000, 16),
]  # fmt: skip
QUICK = [(16, 256, 16), (256, 4096, 16)]
RATE = 50_000
MANY_FLOWS = 1000  # one machine does not have enough ports for so many of all contestants at the same time
MANY_CONNECTIONS = 1000
MOST_ROUNDS = 2  # with 10,000 connections, which take up to a minute to come about
PER_CONNECTION = 0.005  # seconds, an estimate
BYTES = 1200
THREADS_CONNECTIONS = 64
THREADS_RATES = (20_000, 50_000, 100_000)


class ManyTunnel(bed.Tunnel):
    """A number of connections of the client for all."""

    def __init__(self, contestant, connections):
        super().__init__(contestant)
        self.connections = connections

    def client_command(self):
        return self.contestant.any_client(self.address, self.targets, self.connections)


class Connections(Part):
    name = "connections"

    def __init__(self, given, connections, cases):
        super().__init__(min(given.rounds, MOST_ROUNDS) if connections > MANY_CONNECTIONS else given.rounds, cases)
        self.connections, self.duration = connections, given.seconds
        self.startup += connections * PER_CONNECTION
        self.lasting = all(case["flows"] < MANY_FLOWS for case in cases)

    def site(self, contestant):
        return ManyTunnel(contestant, self.connections)

    def takes(self, contestant, case):
        # The two in Go would take minutes more for so many.
        return self.connections < MANY_CONNECTIONS or contestant not in (bed.MASQUE, bed.HYSTERIA)

    def seconds(self, contestant, case):
        return self.duration + packets.OVERHEAD + case["flows"] * 0.0001

    def run(self, tunnel, case):
        answer = packets.carry(tunnel, case, self.duration)
        del answer["client_ns"]
        return answer


def parts(given):
    """A part for each number of connections, and for many flows."""
    design = QUICK if given.quick else DESIGN
    for connections, many in dict.fromkeys((number, flows >= MANY_FLOWS) for number, flows, _ in design):
        cases = [
            {"rate": RATE, "bytes": BYTES, "burst": burst, "flows": flows, "connections": connections, "direction": direction}
            for number, flows, burst in design if (number, flows >= MANY_FLOWS) == (connections, many)
            for direction in packets.DIRECTIONS
        ]  # fmt: skip
        yield Connections(given, connections, cases)


class ThreadsTunnel(ManyTunnel):
    """The proxy may use both CPUs. The client and the generator have the first one."""

    proxy_cpu = None

    def __init__(self, contestant, threads):
        super().__init__(contestant, THREADS_CONNECTIONS)
        self.threads = threads

    def proxy_command(self):
        return self.contestant.proxy(self.targets, self.threads)


class BothTunnels(contextlib.ExitStack):
    """The same proxy with one thread and with two."""

    def __init__(self, contestant):
        super().__init__()
        self.contestant = contestant

    def __enter__(self):
        self.of_threads = {threads: self.enter_context(ThreadsTunnel(self.contestant, threads)) for threads in (1, 2)}
        return super().__enter__()


class Threads(Part):
    name = "threads"
    site = BothTunnels

    def __init__(self, given):
        shared = {"bytes": BYTES, "burst": 16, "flows": THREADS_CONNECTIONS, "connections": THREADS_CONNECTIONS}
        cases = [
            shared | {"rate": rate, "direction": direction, "threads": threads}
            for rate in THREADS_RATES for direction in packets.DIRECTIONS for threads in (1, 2)
        ]  # fmt: skip
        super().__init__(given.rounds, cases)
        self.duration = given.seconds

    def takes(self, contestant, case):
        return contestant.is_tandem

    def seconds(self, contestant, case):
        return self.duration + packets.OVERHEAD

    def run(self, tunnels, case):
        tunnel = tunnels.of_threads[case["threads"]]
        before = cpu_of_threads(tunnel.proxy.pid)
        answer = packets.carry(tunnel, case, self.duration)
        del answer["client_ns"]
        spent = [time - before.get(name, 0) for name, time in cpu_of_threads(tunnel.proxy.pid).items()]
        share = max(spent) / max(sum(spent), 1)
        # The busiest thread is full at this rate, if it has a CPU for itself.
        bound = 1e9 / (answer["proxy_ns"] * share)
        delivered = answer["received"] / answer["seconds"]
        return answer | {"busiest_share": round(share, 3), "bound_pps": round(bound), "delivered_pps": round(delivered)}
