"""UDP echoes: `echo.py serve ADDRESS PORT` answers, `echo.py probe ADDRESS PORT` prints the size of
the largest payload that is answered, and that all smaller ones are."""

import select
import socket
import sys
import time

from udp_server import serve

SMALLEST, LARGEST = 1280, 1472  # bytes; the latter fills an IPv4 packet on an Ethernet
ROUNDS = 8  # the tunnel finds out during the first ones what its path carries
ROUND = 0.5  # seconds
PAUSE = 0.001  # seconds between two packets


def echo(address: str, port: int) -> None:
    serve(address, port, lambda payload: payload)


def probe(address: str, port: int) -> None:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect((address, port))
    for _ in range(ROUNDS):
        answered = one_round(udp)
    missing = set(range(SMALLEST, LARGEST + 1)) - answered
    print("largest:", min(missing) - 1 if missing else LARGEST)


def one_round(udp: socket.socket) -> set[int]:
    """Sends a payload of each size, and returns the sizes that came back."""
    answered = set()
    for size in range(SMALLEST, LARGEST + 1):
        udp.send(bytes(size))
        answered |= sizes_within(udp, PAUSE)
    return answered | sizes_within(udp, ROUND)


def sizes_within(udp: socket.socket, duration: float) -> set[int]:
    """Returns the sizes of the payloads that arrive within this time."""
    found = set()
    deadline = time.monotonic() + duration
    while select.select([udp], [], [], max(0, deadline - time.monotonic()))[0]:
        found.add(len(udp.recv(65535)))
    return found


if __name__ == "__main__":
    _, command, address, port = sys.argv
    {"serve": echo, "probe": probe}[command](address, int(port))
