"""The memory of a proxy per idle connection and per idle flow."""

import socket
import time

import bed
from common import Processes, start, stop
from rounds import Part

SETTLE = 2  # seconds until a proxy has given back what it needed for handshakes


class NewProxies(Processes):
    """Each case starts its own proxies."""

    def __init__(self, contestant):
        super().__init__()
        self.contestant = contestant

    def set_up(self):
        pass


class Memory(Part):
    name = "memory"
    site = NewProxies
    startup = 0

    def __init__(self, given):
        super().__init__(given.memory_rounds, [{"idle": given.idle}])

    def takes(self, contestant, case):
        return bool(contestant.protocol)

    def seconds(self, contestant, case):
        return 3 * (SETTLE + 0.5) + case["idle"] * 0.003

    def run(self, site, case):
        count = case["idle"]
        at_start, single = resident_with(site.contestant, 1, 1)
        _, connections = resident_with(site.contestant, count, 1)
        _, flows = resident_with(site.contestant, 1, count)
        return {
            "start_bytes": at_start,
            "connection_bytes": round((connections - single) / (count - 1)),
            "flow_bytes": round((flows - single) / (count - 1)),
        }


def resident_with(contestant, connections, flows):
    """The memory of a new proxy: without connections, and with a number of connections that have a number of flows each."""
    processes = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target:
        target.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*target.getsockname())
        try:
            proxy, (listens,), _ = start(contestant.proxy([address]), 1)
            processes.append(proxy)
            at_start = bed.resident(proxy.pid)
            idle, *_ = start(contestant.shared_client(listens, "idle", connections, flows, address), 1)
            processes.append(idle)
            time.sleep(SETTLE)
            return at_start, bed.resident(proxy.pid)
        finally:
            stop(processes)
