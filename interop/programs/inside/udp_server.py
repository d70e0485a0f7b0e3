"""A UDP server that answers each payload."""

import socket
from collections.abc import Callable


def serve(address: str, port: int, answer: Callable[[bytes], bytes]) -> None:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, port))
    print(f"listening on {address}:{port}", flush=True)
    while True:
        payload, sender = udp.recvfrom(65535)
        udp.sendto(answer(payload), sender)
