"""A TCP server that logs how each connection ends: ends.py

The first line of a connection says what it does:
- digest: it reads up to the end, and answers with the SHA-256 of what came after the line.
- finish: it sends "bye" and FIN at once, and goes on reading.
- reset: it sends "bye" and, when it has read another line, RST."""

import hashlib
import socketserver
import struct
import sys
from socket import SHUT_WR, SO_LINGER, SOL_SOCKET

READ = 65_536  # bytes
IDLE = 30  # seconds until a connection is given up


class Connection(socketserver.StreamRequestHandler):
    timeout = IDLE

    def handle(self) -> None:
        self.command, self.length = self.rfile.readline().decode().strip(), 0
        try:
            end = self.talk()
        except OSError:  # an RST may come at any time
            end = "RST"
        if end:
            # One call, so that the lines of two threads do not mix.
            sys.stderr.write(f"{self.command}: {self.length} bytes and {end}\n")

    def talk(self) -> str | None:
        """Does what the first line says, and returns how the client ended the connection."""
        if self.command != "digest":
            self.wfile.write(b"bye")
        if self.command == "finish":
            self.connection.shutdown(SHUT_WR)
        if self.command == "reset":
            self.rfile.readline()
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            return None
        digest = hashlib.sha256()
        while piece := self.rfile.read1(READ):
            digest.update(piece)
            self.length += len(piece)
        if self.command == "digest":
            self.wfile.write(digest.hexdigest().encode())
        return "FIN"


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def shutdown_request(self, request) -> None:
        self.close_request(request)  # without a FIN before an RST


server = Server(("127.0.0.1", 0), Connection)
print(f"listening on 127.0.0.1:{server.server_address[1]}", file=sys.stderr, flush=True)
server.serve_forever()
