"""A proxy for TCP on aioquic: connect_proxy.py CERT KEY

It knows CONNECT (RFC 9114 section 4.4) only. It does not announce
SETTINGS_ENABLE_CONNECT_PROTOCOL, and answers other requests with 400."""

import asyncio
import socket
import struct
import sys

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection, Setting
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamReset

READ = 65_536  # bytes


class Http(H3Connection):
    def _get_local_settings(self) -> dict[int, int]:
        settings = super()._get_local_settings()
        settings.pop(Setting.ENABLE_CONNECT_PROTOCOL, None)
        return settings


class Proxy(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = Http(self._quic)
        self.streams: dict[int, asyncio.Queue[bytes | None]] = {}
        self.reset: set[int] = set()  # the streams that the client has reset
        self.tasks: set[asyncio.Task] = set()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamReset) and event.stream_id in self.streams:
            log(f"stream {event.stream_id} reset with {event.error_code:#x}")
            self.reset.add(event.stream_id)
            self.streams[event.stream_id].put_nowait(None)
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.request(http_event.stream_id, dict(http_event.headers))
            queue = self.streams.get(getattr(http_event, "stream_id", None))
            if queue and isinstance(http_event, DataReceived):
                queue.put_nowait(http_event.data)
            if queue and getattr(http_event, "stream_ended", False):
                queue.put_nowait(None)
        self.transmit()

    def request(self, stream: int, head: dict[bytes, bytes]) -> None:
        protocol = head.get(b":protocol", b"").decode() or "HTTP/3"
        log(head[b":method"].decode(), protocol, head[b":authority"].decode())
        if head[b":method"] != b"CONNECT" or b":protocol" in head:
            return self.http.send_headers(stream, [(b":status", b"400")], end_stream=True)
        self.streams[stream] = asyncio.Queue()
        task = asyncio.ensure_future(self.connect(stream, head[b":authority"].decode()))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def connect(self, stream: int, target: str) -> None:
        """Opens a TCP connection and passes bytes on in both directions."""
        host, port = target.rsplit(":", 1)
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:
            log(error)
            self.http.send_headers(stream, [(b":status", b"502")], end_stream=True)
            return self.transmit()
        self.http.send_headers(stream, [(b":status", b"200")])
        self.transmit()
        sent, received = await asyncio.gather(
            self.to_target(stream, writer), self.to_client(stream, reader)
        )
        writer.close()
        log(f"closed: {sent} bytes to the target, {received} from it")

    async def to_target(self, stream: int, writer: asyncio.StreamWriter) -> int:
        length = 0
        while (data := await self.streams[stream].get()) is not None:
            length += len(data)
            writer.write(data)
            await writer.drain()
        if stream in self.reset:
            end_at_once = struct.pack("ii", 1, 0)  # RST instead of FIN
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, end_at_once)
            writer.transport.abort()
        elif not writer.transport.is_closing():
            writer.write_eof()
        return length

    async def to_client(self, stream: int, reader: asyncio.StreamReader) -> int:
        length = 0
        try:
            while data := await reader.read(READ):
                length += len(data)
                self.http.send_data(stream, data, end_stream=False)
                self.transmit()
        except ConnectionResetError:
            self._quic.reset_stream(stream, ErrorCode.H3_CONNECT_ERROR)
            self.streams[stream].put_nowait(None)
        else:
            if stream not in self.reset:
                self.http.send_data(stream, b"", end_stream=True)
        self.transmit()
        return length


def log(*words) -> None:
    print(*words, file=sys.stderr, flush=True)


async def main(cert: str, key: str) -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(cert, key)
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Proxy)
    log(f"listening on 127.0.0.1:{server._transport.get_extra_info('sockname')[1]}")
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
