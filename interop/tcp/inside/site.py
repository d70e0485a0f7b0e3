"""An HTTP/1.1 site, with TLS if a certificate is given: site.py ROOT [CERT KEY]

It serves the files below ROOT, answers POST and PUT with the SHA-256 of the body, and passes
requests for paths below /git/ to git. It logs each request with the port of its TCP connection."""

import hashlib
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

READ = 65_536  # bytes
IDLE = 60  # seconds until an idle connection is closed


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE

    def __init__(self, root: Path, *args):
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path.startswith("/git/"):
            return self.git(b"")
        file = (self.root / urlsplit(self.path).path.lstrip("/")).resolve()
        if file.is_dir():
            file /= "index.html"
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            return self.answer(404, b"This site has no such page.\n")
        kind = "text/html" if file.suffix == ".html" else "application/octet-stream"
        self.answer(200, file.read_bytes(), {"Content-Type": kind})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self.path.startswith("/git/"):
            return self.git(b"".join(self.body()))
        digest = hashlib.sha256()
        for piece in self.body():
            digest.update(piece)
        self.answer(200, digest.hexdigest().encode())

    do_PUT = do_POST

    def body(self) -> Iterator[bytes]:
        """Reads the body of a request."""
        if self.headers.get("transfer-encoding") != "chunked":
            return (yield from self.pieces(int(self.headers.get("content-length", 0))))
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield from self.pieces(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def pieces(self, length: int) -> Iterator[bytes]:
        while length:
            piece = self.rfile.read(min(READ, length))
            if not piece:
                raise ConnectionError("the body is incomplete")
            length -= len(piece)
            yield piece

    def git(self, body: bytes) -> None:
        """Lets git answer, as a program of CGI."""
        url = urlsplit(self.path)
        variables = {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": "interop",
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
        }
        command = ("git", "http-backend")
        done = subprocess.run(
            command, input=body, stdout=subprocess.PIPE, env={**os.environ, **variables}, check=True
        )
        head, content = done.stdout.split(b"\r\n\r\n", 1)
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.pop("Status", "200").split()[0])
        self.answer(status, content, fields)

    def answer(self, status: int, body: bytes, fields: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, form: str, *values) -> None:
        host = self.headers.get("host") if hasattr(self, "headers") else None
        fields = ("via", "proxy-connection", "proxy-authorization")
        shown = [name for name in fields if hasattr(self, "headers") and name in self.headers]
        print(form % values, "host", host, "port", self.client_address[1], *shown, file=sys.stderr)


def main(root: str, cert: str | None = None, key: str | None = None) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, Path(root)))
    if cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        # The handshake is made by the connection's thread.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    print(f"listening on 127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


main(*sys.argv[1:])
