"""Relays TCP connections: `tcp_relay.py FROM-HOST FROM-PORT TO-HOST TO-PORT`"""

import asyncio
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def main(from_host: str, from_port: str, to_host: str, to_port: str) -> None:
    async def relay(reader, writer) -> None:
        far_reader, far_writer = await asyncio.open_connection(to_host, int(to_port))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_server(relay, from_host, int(from_port))
    print("listening on", f"{from_host}:{from_port}", flush=True)
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
