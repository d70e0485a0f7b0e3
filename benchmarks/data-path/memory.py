"""The memory of a proxy per idle connection and per idle flow."""

import os
import socket
import sys
import time

import bed
from common import stop

SETTLE = 2  # seconds until a proxy has given back what it needed for handshakes


def rounds(given, contestants, write):
    for number in range(1, given.memory_rounds + 1):
        for one in contestants:
            row = {"part": "memory", "round": number, "contestant": one.name, "load_average": round(os.getloadavg()[0], 2)}
            try:
                write(row | measure(one, given.idle))
            except bed.Failed as failure:
                print(failure, file=sys.stderr)
                write(row | {"failed": str(failure)})


def measure(contestant, count):
    start, single = resident_with(contestant, 1, 1)
    _, connections = resident_with(contestant, count, 1)
    _, flows = resident_with(contestant, 1, count)
    return {
        "idle": count,
        "start_bytes": start,
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
            proxy, (listens,) = bed.start(contestant.proxy([address]), 1)
            processes.append(proxy)
            start = bed.resident(proxy.pid)
            idle, _ = bed.start(contestant.idle(listens, address, connections, flows), 1)
            processes.append(idle)
            time.sleep(SETTLE)
            return start, bed.resident(proxy.pid)
        finally:
            stop(processes)
