"""Fetches a URL over HTTP/3 with aioquic: get.py CA-FILE URL OUTPUT"""

import asyncio
import sys
from urllib.parse import urlsplit

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset


class Get(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.body = bytearray()
        self.done = asyncio.get_running_loop().create_future()

    async def fetch(self, authority: str, path: str) -> bytes:
        stream = self._quic.get_next_available_stream_id()
        head = {":method": "GET", ":scheme": "https", ":authority": authority, ":path": path}
        headers = [(name.encode(), value.encode()) for name, value in head.items()]
        self.http.send_headers(stream, headers, end_stream=True)
        self.transmit()
        await self.done
        return bytes(self.body)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, (ConnectionTerminated, StreamReset)) and not self.done.done():
            self.done.set_exception(ConnectionError(str(event)))
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                print("status", dict(http_event.headers)[b":status"].decode(), file=sys.stderr)
            if isinstance(http_event, DataReceived):
                self.body += http_event.data
            if http_event.stream_ended and not self.done.done():
                self.done.set_result(None)


async def main(ca: str, url: str, output: str) -> None:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN)
    configuration.load_verify_locations(ca)
    parts = urlsplit(url)
    where = {"configuration": configuration, "create_protocol": Get}
    async with connect(parts.hostname, parts.port, **where) as client:
        body = await client.fetch(parts.netloc, parts.path)
    with open(output, "wb") as file:
        file.write(body)


asyncio.run(main(*sys.argv[1:]))
