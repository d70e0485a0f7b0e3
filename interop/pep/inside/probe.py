"""Sends one QUIC packet of an unknown version, and waits for Version Negotiation: `probe.py FROM TO PORT`"""

import socket
import sys

_, source, target, port = sys.argv
packet = bytes([0xC0]) + bytes.fromhex("1a2a3a4a") + bytes([8]) + b"A" * 8 + bytes([8]) + b"B" * 8
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    probe.settimeout(5)
    probe.bind((source, 0))
    probe.sendto(packet.ljust(1200, b"\0"), (target, int(port)))
    answer = probe.recv(2000)
sys.exit(0 if answer[0] & 0x80 and answer[1:5] == bytes(4) else 1)
