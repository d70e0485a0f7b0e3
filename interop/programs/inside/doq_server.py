"""A server of DNS over QUIC (RFC 9250): `doq_server.py CERT KEY ADDRESS PORT`. It answers each
query with the address 192.0.2.1."""

import asyncio
import sys

import dns.message
import dns.rrset
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived


class Server(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.queries: dict[int, bytes] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if not isinstance(event, StreamDataReceived):
            return
        stream = event.stream_id
        self.queries[stream] = self.queries.get(stream, b"") + event.data
        if event.end_stream:
            # Each message follows its length.
            response = answer(self.queries.pop(stream)[2:])
            data = len(response).to_bytes(2, "big") + response
            self._quic.send_stream_data(stream, data, end_stream=True)
            self.transmit()


def answer(query: bytes) -> bytes:
    message = dns.message.from_wire(query)
    response = dns.message.make_response(message)
    response.answer.append(dns.rrset.from_text(message.question[0].name, 0, "IN", "A", "192.0.2.1"))
    return response.to_wire()


async def main(cert: str, key: str, address: str, port: str) -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["doq"])
    configuration.load_cert_chain(cert, key)
    await serve(address, int(port), configuration=configuration, create_protocol=Server)
    print(f"listening on {address}:{port}", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
