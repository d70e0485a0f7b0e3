"""The programs that run inside the namespaces: `python3 hosts.py COMMAND ARGUMENTS`."""

import select
import socket
import struct
import sys
import time

SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>; root can exceed the system's limit with it
PORT = 9000
PAYLOAD_LEN = 100  # bytes
BURST = 100  # packets at a time, which is less than any queue on the path holds
QUIET = 3  # seconds without a packet after which no more packets are expected
START_TIMEOUT = 30  # seconds until the first packet arrives
ECHO_REQUEST, ECHO_REPLY = 8, 0  # RFC 792


def ping(address: str, count: int) -> None:
    """Sends `count` echo requests, and prints the number of those answered within one second."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    answered = 0
    for number in range(count):
        raw.sendto(echo_request(number), (address, 0))
        answered += awaited(raw, number, time.monotonic() + 1)
    print(answered)


def awaited(raw: socket.socket, number: int, deadline: float) -> bool:
    """Returns whether the answer with this number arrives in time."""
    while select.select([raw], [], [], max(0, deadline - time.monotonic()))[0]:
        packet = raw.recv(2000)
        header_len = (packet[0] & 15) * 4
        kind, _, _, _, sequence = struct.unpack_from("!BBHHH", packet, header_len)
        if (kind, sequence) == (ECHO_REPLY, number):
            return True
    return False


def echo_request(number: int) -> bytes:
    words = [ECHO_REQUEST << 8, 0, 0x7A7A, number]
    total = sum(words)
    words[1] = ~(total % 0xFFFF) & 0xFFFF  # the sum in ones' complement
    return struct.pack("!4H", *words)


def send(address: str, count: int) -> None:
    """Sends `count` UDP packets, one burst per millisecond."""
    udp = socket.socket(family(address), socket.SOCK_DGRAM)
    for number in range(count):
        udp.sendto(number.to_bytes(PAYLOAD_LEN, "big"), (address, PORT))
        if number % BURST == 0:
            time.sleep(0.001)


def count(address: str) -> None:
    """Prints the number of different UDP packets that arrived."""
    udp = socket.socket(family(address), socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 100_000_000)
    udp.bind((address, PORT))
    print("ready", flush=True)
    seen = set()
    udp.settimeout(START_TIMEOUT)
    try:
        while True:
            seen.add(udp.recv(2000))
            udp.settimeout(QUIET)
    except TimeoutError:
        print(len(seen))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


if __name__ == "__main__":
    _, command, address, *rest = sys.argv
    {"ping": ping, "send": send, "count": count}[command](address, *map(int, rest))
