"""An application behind nginx: it tells what it got, and echoes WebSockets. Its arguments are two ports, for HTTP and for
WebSockets."""

import asyncio
import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from websockets.asyncio.server import serve


class Teller(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fields = {name.lower(): value for name, value in self.headers.items()}
        told = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest(), "fields": fields}
        answer = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_) -> None:
        pass


async def echo(websocket) -> None:
    async for message in websocket:
        await websocket.send(message)


async def main() -> None:
    http, websockets = map(int, sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", http), Teller)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with serve(echo, "127.0.0.1", websockets, max_size=None):
        print("serving", flush=True)
        await asyncio.Future()


asyncio.run(main())
