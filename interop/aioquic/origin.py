"""Serves a folder over HTTP/3 with aioquic: origin.py ROOT CERT KEY [ADDRESS:PORT]"""

import asyncio
import sys
from pathlib import Path

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent


class Origin(QuicConnectionProtocol):
    root: Path

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)

    def quic_event_received(self, event: QuicEvent) -> None:
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.answer(http_event.stream_id, dict(http_event.headers)[b":path"].decode())
        self.transmit()

    def answer(self, stream: int, path: str) -> None:
        print("GET", path, file=sys.stderr, flush=True)
        body = (self.root / Path(path).name).read_bytes()
        headers = [(b":status", b"200"), (b"content-length", str(len(body)).encode())]
        self.http.send_headers(stream, headers)
        self.http.send_data(stream, body, end_stream=True)


async def main(root: str, cert: str, key: str, listen: str = "127.0.0.1:0") -> None:
    Origin.root = Path(root)
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(cert, key)
    host, port = listen.rsplit(":", 1)
    server = await serve(host, int(port), configuration=configuration, create_protocol=Origin)
    host, port = server._transport.get_extra_info("sockname")[:2]
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
