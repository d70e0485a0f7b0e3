"""Fetches a URL over HTTP/3 with aioquic: get.py CA-FILE URL OUTPUT [--change-id | --rebind]

--change-id changes the connection's ID whenever another 500 kB have come. The server is an aioquic too, which
answers each change with one of its own. --rebind goes on from another local port after 1 MB, under the
same ID, as if a NAT had forgotten the first port."""

import asyncio
import socket
import sys
from urllib.parse import urlsplit

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset


CHANGE_EVERY = 500_000  # bytes
REBIND_AFTER = 1_000_000  # bytes


class Get(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.changes_id = self.rebinds = False
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
                self.disturb(len(self.body) - len(http_event.data), len(self.body))
            if http_event.stream_ended and not self.done.done():
                self.done.set_result(None)

    def disturb(self, before: int, now: int) -> None:
        """Changes what `main` was asked to change, when this many bytes have come."""
        if self.changes_id and before // CHANGE_EVERY < now // CHANGE_EVERY:
            former = self._quic._peer_cid.cid
            self.change_connection_id()
            if self._quic._peer_cid.cid != former:
                print("changed the ID", file=sys.stderr)
        if self.rebinds and before < REBIND_AFTER <= now:
            self.rebinding = asyncio.ensure_future(self.rebind())

    async def rebind(self) -> None:
        """Goes on from another socket, of the same kind as that of `connect`."""
        new = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        new.bind(("::", 0, 0, 0))
        self._transport.close()
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=new)
        print("rebound to port", new.getsockname()[1], file=sys.stderr)
        await self.ping()  # the server learns the new address from it


async def main(ca: str, url: str, output: str, option: str = "") -> None:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN)
    configuration.load_verify_locations(ca)
    parts = urlsplit(url)
    where = {"configuration": configuration, "create_protocol": Get}
    async with connect(parts.hostname, parts.port, **where) as client:
        client.changes_id, client.rebinds = option == "--change-id", option == "--rebind"
        body = await client.fetch(parts.netloc, parts.path)
    with open(output, "wb") as file:
        file.write(body)


asyncio.run(main(*sys.argv[1:]))
