"""Uses a proxy for TCP with aioquic: connect.py FORM CA PROXY TARGET CLOSED TOKEN

FORM is connect-tcp (capsules, draft-ietf-httpbis-connect-tcp) or connect (RFC 9114 section 4.4).
TARGET is the address of `tcp/inside/ends.py`, and CLOSED one at which nothing listens."""

import asyncio
import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamReset

DATA, FINAL_DATA = 0x2028D7F2, 0x2028D7F3
UNKNOWN = 0x29 * 70_000 + 0x17  # a type that is reserved, so that it must be skipped
TIMEOUT = 20  # seconds for all checks
UPLOAD = 1_000_000  # bytes


@dataclass
class Stream:
    """What has arrived on a request stream."""

    id: int
    head: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None


class Client(QuicConnectionProtocol):
    capsules: bool
    authority: str
    token: str

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.streams: dict[int, Stream] = {}
        self.news = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamReset):
            self.streams[event.stream_id].reset = event.error_code
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, (HeadersReceived, DataReceived)):
                stream = self.streams[http_event.stream_id]
                stream.ended = http_event.stream_ended
                if isinstance(http_event, DataReceived):
                    stream.body += http_event.data
                elif not stream.head:
                    fields = http_event.headers
                    stream.head = {name.decode(): value.decode() for name, value in fields}
        self.news.set()

    def open(self, target: str, early: bytes = b"", token: bool = True) -> Stream:
        """Sends a request, and bytes directly after it."""
        stream = Stream(self._quic.get_next_available_stream_id())
        self.streams[stream.id] = stream
        host, port = target.rsplit(":", 1)
        if self.capsules:
            head = {
                ":method": "CONNECT",
                ":protocol": "connect-tcp",
                ":scheme": "https",
                ":authority": self.authority,
                ":path": f"/.well-known/masque/tcp/{host}/{port}/",
                "capsule-protocol": "?1",
            }
        else:
            head = {":method": "CONNECT", ":authority": target}
        if token:
            name = "authorization" if self.capsules else "proxy-authorization"
            head[name] = f"Bearer {self.token}"
        self.http.send_headers(stream.id, [(n.encode(), v.encode()) for n, v in head.items()])
        if early:
            self.send(stream, early)
        self.transmit()
        return stream

    def send(self, stream: Stream, data: bytes, final: bool = False) -> None:
        """Sends bytes, and if they are the last ones also FIN."""
        if self.capsules:
            data = capsule(UNKNOWN, b"skip") + capsule(FINAL_DATA if final else DATA, data)
        self.http.send_data(stream.id, data, end_stream=final)
        self.transmit()

    async def until(self, condition) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def answer(self, stream: Stream, status: str) -> None:
        await self.until(lambda: stream.head or stream.reset is not None)
        check("the status", stream.head.get(":status"), status)

    async def bye(self, stream: Stream) -> None:
        """Waits for what the target sends first."""
        await self.answer(stream, "200")
        if self.capsules:
            check("capsule-protocol", stream.head.get("capsule-protocol"), "?1")
        await self.until(lambda: self.received(stream)[0] == b"bye")

    def received(self, stream: Stream) -> tuple[bytes, bool]:
        """Returns the bytes of the target, and whether it has sent FIN."""
        if not self.capsules:
            return bytes(stream.body), stream.ended
        pieces = list(capsules(bytes(stream.body)))
        data = b"".join(value for kind, value in pieces if kind in (DATA, FINAL_DATA))
        return data, any(kind == FINAL_DATA for kind, _ in pieces)


def capsule(kind: int, value: bytes) -> bytes:
    return encode_uint_var(kind) + encode_uint_var(len(value)) + value


def capsules(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns the complete capsules. No DATA of the checks is longer than one capsule."""
    buffer = Buffer(data=data)
    while not buffer.eof():
        try:
            yield buffer.pull_uint_var(), buffer.pull_bytes(buffer.pull_uint_var())
        except ValueError:
            return


def check(what: str, found, wanted) -> None:
    if found != wanted:
        sys.exit(f"{what} is {found!r}, not {wanted!r}")
    print(f"{what} is {found!r}", file=sys.stderr)


async def refusals(client: Client, target: str, closed: str) -> None:
    stream = client.open(target, token=False)
    await client.answer(stream, "401" if client.capsules else "407")
    challenge = "www-authenticate" if client.capsules else "proxy-authenticate"
    check("the challenge", stream.head.get(challenge, "").split()[:1], ["Bearer"])
    stream = client.open(closed)
    await client.answer(stream, "502")
    check("the cause", "connection_refused" in stream.head["proxy-status"], True)


async def early_bytes_and_fin(client: Client, target: str) -> None:
    """The first bytes follow the request at once, and the target answers after FIN."""
    upload = random.randbytes(UPLOAD)
    stream = client.open(target, b"digest\n" + upload[:1000])
    client.send(stream, upload[1000:], final=True)
    await client.until(lambda: stream.ended or stream.reset is not None)
    digest = hashlib.sha256(upload).hexdigest().encode()
    check("the answer", client.received(stream), (digest, True))


async def fin_of_the_target(client: Client, target: str) -> None:
    """The target sends FIN first. The other direction goes on."""
    stream = client.open(target, b"finish\n")
    await client.bye(stream)
    await client.until(lambda: client.received(stream)[1])
    client.send(stream, b"more than 4", final=True)
    await client.until(lambda: stream.ended)
    check("a reset", stream.reset, None)


async def rst_of_the_target(client: Client, target: str) -> None:
    stream = client.open(target, b"reset\n")
    await client.bye(stream)
    client.send(stream, b"\n")
    await client.until(lambda: stream.ended or stream.reset is not None)
    check("the code of the reset", stream.reset, ErrorCode.H3_CONNECT_ERROR)


async def rst_of_the_client(client: Client, target: str) -> None:
    stream = client.open(target, b"finish\n")
    await client.bye(stream)
    client._quic.reset_stream(stream.id, ErrorCode.H3_CONNECT_ERROR)
    client.transmit()


async def end_without_final_data(client: Client, target: str) -> None:
    """The draft says that this is an abrupt end."""
    stream = client.open(target, b"finish\n")
    await client.bye(stream)
    client.http.send_data(stream.id, capsule(DATA, b"cut"), end_stream=True)
    client.transmit()


async def checks(client: Client, target: str, closed: str) -> None:
    await client.until(lambda: client.http.received_settings is not None)
    await refusals(client, target, closed)
    await early_bytes_and_fin(client, target)
    await fin_of_the_target(client, target)
    await rst_of_the_target(client, target)
    await rst_of_the_client(client, target)
    if client.capsules:
        await end_without_final_data(client, target)
    await client.ping()


async def main(form: str, ca: str, proxy: str, target: str, closed: str, token: str) -> None:
    Client.capsules, Client.authority, Client.token = form == "connect-tcp", proxy, token
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN)
    configuration.load_verify_locations(ca)
    host, port = proxy.rsplit(":", 1)
    where = {"configuration": configuration, "create_protocol": Client}
    async with connect(host, int(port), **where) as client:
        await asyncio.wait_for(checks(client, target, closed), TIMEOUT)


asyncio.run(main(*sys.argv[1:]))
