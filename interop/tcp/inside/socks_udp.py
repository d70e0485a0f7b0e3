"""Sends UDP payloads through a SOCKS5 proxy with PySocks, to two servers that echo and one of DNS:
socks_udp.py PROXY-PORT ECHO-PORT ECHO-PORT DNS-PORT"""

import random
import sys

import dns.message
import socks

TIMEOUT = 10  # seconds
ROUNDS = 20
SIZES = (0, 1, 100, 1200)  # bytes of payloads


def association(proxy: int) -> socks.socksocket:
    udp = socks.socksocket(socks.socket.AF_INET, socks.socket.SOCK_DGRAM)
    udp.set_proxy(socks.SOCKS5, "127.0.0.1", proxy)
    udp.settimeout(TIMEOUT)
    udp.bind(("127.0.0.1", 0))  # this asks for the association
    return udp


def echoes(udp: socks.socksocket, targets: list[tuple[str, int]]) -> None:
    """Sends payloads to all targets in turn. Each answer must come from the port of its target."""
    for number in range(ROUNDS):
        for host, port in targets:
            payload = random.randbytes(SIZES[number % len(SIZES)])
            udp.sendto(payload, (host, port))
            answer, sender = udp.recvfrom(65535)
            if (answer, sender[1]) != (payload, port):
                sys.exit(f"{len(answer)} bytes came from {sender}, not {len(payload)} from {port}")
    print(f"{ROUNDS} echoes of each of {targets}")


def resolve(udp: socks.socksocket, server: tuple[str, int], size: int) -> None:
    """Asks for a name, whose answer has as many bytes as the name says."""
    query = dns.message.make_query(f"{size}.test", "TXT")
    udp.sendto(query.to_wire(), server)
    wire, _ = udp.recvfrom(65535)
    answer = dns.message.from_wire(wire)
    if answer.id != query.id or len(wire) != size or not answer.answer:
        sys.exit(f"the answer has {len(wire)} bytes: {answer}")
    print(f"an answer of {len(wire)} bytes from {server}")


def main(proxy: int, first: int, second: int, dns_port: int) -> None:
    targets = [(host, port) for host in ("127.0.0.1", "localhost") for port in (first, second)]
    one, other = association(proxy), association(proxy)
    echoes(one, targets)
    echoes(other, targets[::-1])
    one.close()
    resolve(other, ("127.0.0.1", dns_port), 500)
    resolve(other, ("localhost", dns_port), 1000)
    other.close()


main(*map(int, sys.argv[1:]))
