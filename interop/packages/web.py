"""The servers for HTTPS that the documents name, all at one address: `web.py CERTIFICATE KEY FOLDER PORT`.

The folder has a folder for each host. The host of Let's Encrypt leads to Pebble at a port of this machine.
"""

import http.client
import ssl
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

AUTHORITY = "acme-v02.api.letsencrypt.org"
certificate, key, folder, port = sys.argv[1:]


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def translate_path(self, path: str) -> str:
        host = self.headers.get("Host", "none").split(":")[0]
        self.directory = str(Path(folder) / Path(host).name)
        return super().translate_path(path)

    def do_GET(self) -> None:
        if self.headers.get("Host") == AUTHORITY:
            self.ask_the_authority()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        if self.headers.get("Host") == AUTHORITY:
            self.ask_the_authority()
        else:
            super().do_HEAD()

    def do_POST(self) -> None:
        self.ask_the_authority()

    def ask_the_authority(self) -> None:
        """Passes a request to Pebble, whose directory has another path."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        authority = http.client.HTTPSConnection("127.0.0.1", int(port), context=context, timeout=30)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = "/dir" if self.path == "/directory" else self.path
        authority.request(self.command, path, body, dict(self.headers))
        answer = authority.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "date", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)
server = ThreadingHTTPServer(("", 443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
print("listening", flush=True)
server.serve_forever()
