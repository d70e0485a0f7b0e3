"""A client of HTTP/3 on aioquic, with WebSockets (RFC 9220)."""

import asyncio
from contextlib import asynccontextmanager

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol, State

from files import CA

TIMEOUT = 20  # seconds for each answer


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.streams: dict[int, asyncio.Queue] = {}

    def quic_event_received(self, event) -> None:
        for event in self.http.handle_event(event):
            if isinstance(event, HeadersReceived | DataReceived) and event.stream_id in self.streams:
                self.streams[event.stream_id].put_nowait(event)

    def open(self, fields: list[tuple[str, str]], end: bool) -> int:
        stream = self._quic.get_next_available_stream_id()
        self.streams[stream] = asyncio.Queue()
        self.http.send_headers(
            stream, [(name.encode(), value.encode()) for name, value in fields], end_stream=end
        )
        self.transmit()
        return stream

    def send(self, stream: int, data: bytes, end: bool) -> None:
        self.http.send_data(stream, data, end_stream=end)
        self.transmit()

    async def next(self, stream: int):
        return await asyncio.wait_for(self.streams[stream].get(), TIMEOUT)

    async def ask(self, method: str, path: str, more: dict[str, str], body: bytes = b""):
        """Returns the status, the fields and the body of the answer."""
        fields = [(":method", method), (":scheme", "https"), (":authority", "origin.test"), (":path", path)]
        stream = self.open([*fields, *more.items()], end=not body)
        if body:
            self.send(stream, body, end=True)
        head, content = {}, b""
        while True:
            event = await self.next(stream)
            if isinstance(event, HeadersReceived):
                head |= {name.decode(): value.decode() for name, value in event.headers}
            else:
                content += event.data
            if event.stream_ended:
                return int(head[":status"]), head, content

    async def echo(self, path: str, messages: list[bytes]) -> tuple[int, list[bytes]]:
        """Opens a WebSocket, and returns the status and what comes back of the messages."""
        fields = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https")]
        fields += [(":authority", "origin.test"), (":path", path), ("sec-websocket-version", "13")]
        stream = self.open(fields, end=False)
        head = dict((await self.next(stream)).headers)
        status = int(head[b":status"])
        if status != 200:
            return status, []
        # The frames of RFC 6455, after a handshake that HTTP/3 has done.
        protocol = Protocol(CLIENT, state=State.OPEN, max_size=None)
        came = []
        for message in messages:
            protocol.send_binary(message)
            for data in protocol.data_to_send():
                self.send(stream, data, end=False)
            whole = b""
            while len(whole) < len(message):
                protocol.receive_data((await self.next(stream)).data)
                whole += b"".join(
                    frame.data
                    for frame in protocol.events_received()
                    if isinstance(frame, Frame) and frame.opcode in (Opcode.BINARY, Opcode.CONT)
                )
            came.append(whole)
        protocol.send_close(1000)
        for data in protocol.data_to_send():
            self.send(stream, data, end=False)
        while not (await self.next(stream)).stream_ended:
            pass
        return status, came


@asynccontextmanager
async def client(port: int):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="origin.test")
    configuration.load_verify_locations(CA)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as it:
        yield it
