"""A client on picoquic, with the HTTP/3 of aioquic above it.

`peer.py get CA-FILE URL OUTPUT` fetches a URL. `peer.py echo CA-FILE PROXY TARGET` sends UDP
payloads in QUIC datagrams through a CONNECT-UDP proxy to a target that sends them back."""

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aioquic.quic.events as events
from aiopquic.asyncio.client import connect
from aiopquic.asyncio.protocol import QuicConnectionProtocol
from aiopquic.quic import events as picoquic
from aiopquic.quic.configuration import QuicConfiguration
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived

TIMEOUT = 20  # seconds for each answer
SIZES = range(11, 1392, 138)  # bytes of the payloads; the last fits a datagram on an Ethernet path
CONTEXT = b"\0"  # of UDP payloads (RFC 9298 §4)
TRIES = 5  # of each payload, because datagrams may be lost


class Quic:
    """A connection of picoquic, with what aioquic's HTTP/3 wants of one."""

    _quic_logger = None
    _remote_max_datagram_frame_size = 65535

    def __init__(self, connection):
        self.connection = connection

    def __getattr__(self, name: str):
        return getattr(self.connection, name)


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http: H3Connection | None = None
        self.answers: asyncio.Queue = asyncio.Queue()

    def request(self, head: dict[str, str], end: bool) -> int:
        # HTTP Datagrams are part of what aioquic enables for WebTransport.
        self.http = self.http or H3Connection(Quic(self._quic), enable_webtransport=True)
        stream = self._quic.get_next_available_stream_id()
        headers = [(name.encode(), value.encode()) for name, value in head.items()]
        self.http.send_headers(stream, headers, end_stream=end)
        return stream

    def quic_event_received(self, event) -> None:
        match event:
            case picoquic.StreamDataReceived(stream_id=stream, data=data, end_stream=end):
                event = events.StreamDataReceived(bytes(data), end, stream)
            case picoquic.DatagramFrameReceived(data=data):
                event = events.DatagramFrameReceived(bytes(data))
            case picoquic.ConnectionTerminated() | picoquic.StreamReset():
                self.answers.put_nowait(event)
                return
        if self.http:
            for answer in self.http.handle_event(event):
                self.answers.put_nowait(answer)

    async def answer(self, timeout: float = TIMEOUT):
        """Returns the next event of HTTP/3."""
        answer = await asyncio.wait_for(self.answers.get(), timeout)
        match answer:
            case picoquic.ConnectionTerminated() | picoquic.StreamReset():
                raise ConnectionError(str(answer))
            case HeadersReceived() if dict(answer.headers)[b":status"] != b"200":
                raise ConnectionError(str(answer.headers))
        return answer


def client(ca: str, url: str):
    # The default of the last one is 1200 bytes.
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, cafile=ca, datagram_max_payload=1400)
    location = urlsplit(url)
    return connect(
        location.hostname, location.port, configuration=configuration, create_protocol=Client
    )


async def get(ca: str, url: str, output: str) -> None:
    location = urlsplit(url)
    head = {":method": "GET", ":scheme": "https", ":authority": location.netloc}
    async with client(ca, url) as connection:
        connection.request(head | {":path": location.path}, end=True)
        body = bytearray()
        ended = False
        while not ended:
            answer = await connection.answer()
            if isinstance(answer, DataReceived):
                body += answer.data
            ended = getattr(answer, "stream_ended", False)
    Path(output).write_bytes(body)


async def echo(ca: str, proxy: str, target: str) -> None:
    place = target.replace(":", "/")
    head = {
        ":method": "CONNECT",
        ":protocol": "connect-udp",
        ":scheme": "https",
        ":authority": urlsplit(proxy).netloc,
        ":path": f"/.well-known/masque/udp/{place}/",
        "capsule-protocol": "?1",
    }
    async with client(ca, proxy) as connection:
        stream = connection.request(head, end=False)
        while not isinstance(await connection.answer(), HeadersReceived):
            pass
        for size in SIZES:
            await echoed(connection, stream, CONTEXT + bytes([size % 251]) * size)
    print("echoed:", len(SIZES))


async def echoed(connection: Client, stream: int, datagram: bytes) -> None:
    """Sends a datagram until it comes back."""
    for _ in range(TRIES):
        connection.http.send_datagram(stream, datagram)
        try:
            while getattr(await connection.answer(1), "data", None) != datagram:
                pass
            return
        except TimeoutError:
            pass
    raise ConnectionError(f"a datagram of {len(datagram)} bytes did not come back")


command = {"get": get, "echo": echo}[sys.argv[1]]
asyncio.run(command(*sys.argv[2:]))
