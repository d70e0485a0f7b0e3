"""Uses a configuration profile for Apple's systems, as its schema describes it: relay.py PROFILE CA URL ...

Each URL is http://HOST:PORT/FILE, which is fetched over TCP with CONNECT, or udp://HOST:PORT, at which an echo server
listens and which is reached with connect-udp. For each the program prints `HOST direct` if the profile keeps the host
away from its relays, and else `HOST relays STATUS SHA-256-OF-THE-BODY` or `HOST relays STATUS echo`. It asks only for
what the profile says: its templates, its header fields, its keys and its chain."""

import hashlib
import plistlib
import select
import socket
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

TIMEOUT = 20  # seconds for everything
UDP_SIZES = (0, 1, 500, 1100)  # bytes
PACKET = 1400  # bytes of UDP payload in packets to the nearest relay
INSIDE = 100  # bytes less for each relay behind it


class Stream:
    """A request, and what has come of its answer."""

    def __init__(self):
        self.head: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False
        self.datagrams: list[bytes] = []


class Relay:
    """A connection to a relay. `send` takes its packets."""

    def __init__(self, settings: dict, ca: str, index: int, send):
        self.url = settings["HTTP3RelayURL"]
        self.fields = settings.get("AdditionalHTTPHeaderFields", {})
        self.keys = settings.get("RawPublicKeys", [])
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=H3_ALPN,
            server_name=urlsplit(self.url).hostname,
            max_datagram_frame_size=65535,
            max_datagram_size=PACKET - index * INSIDE,
        )
        if self.keys:
            configuration.verify_mode = ssl.CERT_NONE
        else:
            configuration.load_verify_locations(ca)
        self.quic = QuicConnection(configuration=configuration)
        self.send = send
        self.streams: dict[int, Stream] = {}
        self.is_ready = False
        self.address = ("192.0.2.1", 443)  # the connection needs one and never uses it
        self.quic.connect(self.address, now=time.monotonic())
        self.http = H3Connection(self.quic, enable_webtransport=True)  # this announces HTTP Datagrams

    def receive(self, packet: bytes) -> None:
        self.quic.receive_datagram(packet, self.address, now=time.monotonic())
        while event := self.quic.next_event():
            if isinstance(event, HandshakeCompleted):
                self.check_key()
                self.is_ready = True
            for http_event in self.http.handle_event(event):
                stream = self.streams.get(http_event.stream_id)
                match http_event:
                    case HeadersReceived() if not stream.head:
                        fields = http_event.headers
                        stream.head = {name.decode(): value.decode() for name, value in fields}
                        stream.ended = http_event.stream_ended
                    case DataReceived():
                        stream.body += http_event.data
                        stream.ended = http_event.stream_ended
                    case DatagramReceived() if http_event.data[:1] == b"\0":
                        stream.datagrams.append(http_event.data[1:])

    def check_key(self) -> None:
        key = self.quic.tls._peer_certificate.public_key()
        encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if self.keys and encoded not in self.keys:
            sys.exit("the relay has none of the profile's keys")

    def transmit(self) -> None:
        for packet, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.send(packet)

    def connect(self, host: str, port: int, udp: bool) -> int:
        """Sends a request for a target, and returns the number of its stream."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head = {":method": "CONNECT", ":authority": address}
        if udp:
            url = self.url.replace("{target_host}", quote(host, safe=""))
            url = urlsplit(url.replace("{target_port}", str(port)))
            head = {
                ":method": "CONNECT",
                ":protocol": "connect-udp",
                ":scheme": url.scheme,
                ":authority": url.netloc,
                ":path": url.path + (f"?{url.query}" if url.query else ""),
                "capsule-protocol": "?1",
            }
        fields = [*head.items(), *((name.lower(), text) for name, text in self.fields.items())]
        number = self.quic.get_next_available_stream_id()
        self.streams[number] = Stream()
        self.http.send_headers(number, [(name.encode(), text.encode()) for name, text in fields])
        return number


class Chain:
    """Relays, each of which is reached through the one before it."""

    def __init__(self, relays: list[dict], ca: str):
        first = urlsplit(relays[0]["HTTP3RelayURL"])
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((first.hostname, first.port or 443))
        self.deadline = time.monotonic() + TIMEOUT
        self.relays = [Relay(relays[0], ca, 0, self.socket.send)]
        self.flows: list[int] = []  # that of each relay but the last, to the one behind it
        self.until(lambda: self.relays[0].http.received_settings)
        for index, settings in enumerate(relays[1:], 1):
            outer, url = self.relays[-1], urlsplit(settings["HTTP3RelayURL"])
            flow = outer.connect(url.hostname, url.port or 443, udp=True)
            self.answer(outer, flow)
            self.flows.append(flow)
            send = lambda packet, outer=outer, flow=flow: outer.http.send_datagram(flow, b"\0" + packet)
            self.relays.append(Relay(settings, ca, index, send))
            self.until(lambda: self.relays[-1].http.received_settings)

    def step(self) -> None:
        for relay in reversed(self.relays):
            relay.transmit()
        timers = [relay.quic.get_timer() for relay in self.relays]
        wait = min([self.deadline, *filter(None, timers)]) - time.monotonic()
        if select.select([self.socket], [], [], max(wait, 0))[0]:
            self.relays[0].receive(self.socket.recv(65535))
        for outer, flow, inner in zip(self.relays, self.flows, self.relays[1:], strict=False):
            datagrams = outer.streams[flow].datagrams
            while datagrams:
                inner.receive(datagrams.pop(0))
        for relay in self.relays:
            timer = relay.quic.get_timer()
            if timer is not None and timer <= time.monotonic():
                relay.quic.handle_timer(now=time.monotonic())
        if time.monotonic() > self.deadline:
            sys.exit("no answer in time")

    def until(self, condition) -> None:
        while not condition():
            self.step()

    def answer(self, relay: Relay, flow: int) -> str:
        self.until(lambda: relay.streams[flow].head)
        head = relay.streams[flow].head
        print(f"answer {head}", file=sys.stderr)
        return head[":status"]

    def fetch(self, host: str, port: int, path: str) -> str:
        relay = self.relays[-1]
        flow = relay.connect(host, port, udp=False)
        if (status := self.answer(relay, flow)) != "200":
            return status
        relay.http.send_data(flow, f"GET {path} HTTP/1.0\r\nhost: {host}\r\n\r\n".encode(), True)
        stream = relay.streams[flow]
        self.until(lambda: stream.ended)
        body = bytes(stream.body).split(b"\r\n\r\n", 1)[1]
        return f"{status} {hashlib.sha256(body).hexdigest()}"

    def echo(self, host: str, port: int) -> str:
        relay = self.relays[-1]
        flow = relay.connect(host, port, udp=True)
        if (status := self.answer(relay, flow)) != "200":
            return status
        for size in UDP_SIZES:
            relay.http.send_datagram(flow, b"\0" + bytes(size))
            datagrams = relay.streams[flow].datagrams
            self.until(lambda: datagrams)
            if datagrams.pop() != bytes(size):
                sys.exit("another payload came back")
        return f"{status} echo"


def goes_through(host: str, payload: dict) -> bool:
    """The schema: MatchDomains and ExcludedDomains name domains and what is below them, and the second ones win. Without
    MatchDomains, everything goes through the relays."""
    is_below = lambda domain: host == domain or host.endswith(f".{domain}")
    if any(map(is_below, payload.get("ExcludedDomains", []))):
        return False
    domains = payload.get("MatchDomains", [])
    return not domains or any(map(is_below, domains))


def main(profile: str, ca: str, *urls: str) -> None:
    [payload] = plistlib.loads(Path(profile).read_bytes())["PayloadContent"]
    chain = None
    for url in map(urlsplit, urls):
        if not goes_through(url.hostname, payload):
            print(url.hostname, "direct")
            continue
        chain = chain or Chain(payload["Relays"], ca)
        if url.scheme == "udp":
            print(url.hostname, "relays", chain.echo(url.hostname, url.port))
        else:
            print(url.hostname, "relays", chain.fetch(url.hostname, url.port, url.path))


main(*sys.argv[1:])
