"""Checks `tandem origin` before nginx. Each check prints one line."""

import asyncio
import functools
import hashlib
import json
import os
import random
import shutil
import socket
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from websockets.asyncio.client import connect

import checks
import files
from checks import expect
from http3 import client
from processes import Lab, free_port, wait

TANDEM = os.environ["TANDEM"]
TIMEOUT = 30  # seconds for each step
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        location /health {{ return 204; }}
        location /upload/ {{ alias {folder}/uploads/; dav_methods PUT; }}
        location /form {{
            proxy_pass http://127.0.0.1:{http};
            proxy_set_header Host $host;
        }}
        location /chat {{
            proxy_pass http://127.0.0.1:{websockets};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
        }}
    }}
}}
"""


class Scene:
    """An application, nginx before it, and an origin before nginx."""

    def __init__(self, lab: Lab, folder: Path):
        self.lab, self.folder = lab, folder
        http, websockets, self.port = (free_port(socket.SOCK_STREAM) for _ in range(3))
        (folder / "uploads").mkdir()
        folder.chmod(0o755)
        for name in ("uploads", "body"):  # nginx's workers run as another user if it is started by root
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o777)
        shutil.copytree(files.ROOT, folder / "www")
        text = NGINX.format(
            folder=folder, root=folder / "www", port=self.port, http=http, websockets=websockets
        )
        (folder / "nginx.conf").write_text(text)
        application = Path(__file__).parent / "application.py"
        lab.start("application", sys.executable, application, str(http), str(websockets)).wait_for("serving")
        self.start_nginx()
        certificate = ("--cert", files.CERT, "--key", files.KEY)
        self.origin_port = free_port(socket.SOCK_STREAM)
        # As an operator names it: localhost may have two addresses, of which nginx has one.
        origin = lab.start(
            *("origin", TANDEM, "origin", "--listen", f"127.0.0.1:{self.origin_port}", "--http1"),
            *("--root", f"http://localhost:{self.port}", "--upstream-health", "/health"),
            *("--controller", "tecc", "--admin", "127.0.0.1:0", *certificate),
        )
        self.admin = origin.wait_for(r"admin page at (http://\S+)/")[1]
        origin.wait_for("listening on")
        self.certificate = certificate

    def start_nginx(self) -> None:
        self.nginx = self.lab.start("nginx", "nginx", "-c", self.folder / "nginx.conf", "-e", "stderr")
        wait(self.nginx_listens, "nginx", TIMEOUT, self.nginx)

    def nginx_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def see(self, path: str) -> str:
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(self.admin + path, timeout=TIMEOUT) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def metric(self, name: str) -> float:
        lines = self.see("/metrics").splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def ask(self, *request):
        async def ask():
            async with client(self.origin_port) as it:
                return await it.ask(*request)

        return asyncio.run(ask())


def files_and_ranges_pass(scene: Scene) -> None:
    content = (files.ROOT / files.MEDIUM).read_bytes()
    status, _, body = scene.ask("GET", f"/{files.MEDIUM}", {})
    expect(status == 200 and body == content, f"{status}, {len(body)} bytes")
    status, fields, body = scene.ask("GET", f"/{files.MEDIUM}", {"range": "bytes=1000-1999"})
    expect(status == 206 and body == content[1000:2000], f"{status}, {len(body)} bytes")
    status, fields, _ = scene.ask("GET", f"/{files.MEDIUM}", {"if-none-match": fields["etag"]})
    expect(status == 304, f"{status} for a condition")
    log = scene.lab.run(
        *("curl", "curl", "-sS", "--cacert", files.CA, "-r", "0-4", "-D", "-"),
        *("--resolve", f"origin.test:{scene.origin_port}:127.0.0.1"),
        f"https://origin.test:{scene.origin_port}/{files.PAGE}",
    )
    expect(" 206 Partial" in log.read_text() and "alt-svc: h3=" in log.read_text().lower(), "curl over TCP")


def a_form_reaches_the_application_and_says_who_sent_it(scene: Scene) -> None:
    body = random.randbytes(300_000)
    forged = {"forwarded": "for=192.0.2.9", "x-forwarded-for": "192.0.2.9", "x-real-ip": "192.0.2.9"}
    status, _, told = scene.ask("POST", "/form", {**forged, "content-length": str(len(body))}, body)
    expect(status == 200, f"status {status}")
    told = json.loads(told)
    expect(told["sha256"] == hashlib.sha256(body).hexdigest(), f"{told}")
    fields = told["fields"]
    expect("192.0.2.9" not in str(fields), f"forged: {fields}")
    expect(fields["forwarded"] == 'for=127.0.0.1;host="origin.test";proto=https', f"{fields}")
    expect(fields["host"] == "origin.test" and fields["x-forwarded-for"] == "127.0.0.1", f"{fields}")
    status, _, told = scene.ask("POST", "/form", {}, body)  # its length is not known before its end
    expect(status == 200 and json.loads(told)["length"] == len(body), f"{status} without a length")


def an_upload_reaches_nginx(scene: Scene) -> None:
    url = f"https://127.0.0.1:{scene.origin_port}/upload/file"
    log = scene.lab.run("upload", TANDEM, "get", url, "--ca", files.CA, "--upload", "20MB", "--json")
    expect('"bytes":20000000' in log.read_text(), log.read_text())
    size = (scene.folder / "uploads/file").stat().st_size
    expect(size == 20_000_000, f"nginx has {size} bytes")


def websockets_pass_over_http3(scene: Scene) -> None:
    messages = [b"hello", random.randbytes(200_000), b"again"]

    async def talk():
        async with client(scene.origin_port) as it:
            return await it.echo("/chat", messages), await it.echo("/page", messages)

    (status, came), (other, _) = asyncio.run(talk())
    expect(status == 200 and came == messages, f"{status}, {[len(message) for message in came]}")
    expect(other == 404, f"{other} for a page")
    wait(lambda: scene.metric("tandem_upstream_websockets_open") == 0, "end of the WebSocket", TIMEOUT)


def websockets_pass_over_tcp(scene: Scene) -> None:
    context = ssl.create_default_context(cafile=files.CA)
    messages = [b"hello", random.randbytes(200_000), b"again"]

    async def talk():
        uri = f"wss://127.0.0.1:{scene.origin_port}/chat"
        async with connect(uri, ssl=context, proxy=None, max_size=None) as websocket:
            for message in messages:
                await websocket.send(message)
                yield await websocket.recv()

    async def all_of():
        return [message async for message in talk()]

    came = asyncio.run(all_of())
    expect(came == messages, f"{[len(message) for message in came]}")


def mode_tecc_sends_reports_to_the_origin(scene: Scene) -> None:
    proxy = scene.lab.start(
        *("proxy", TANDEM, "proxy", "--listen", "127.0.0.1:0", "--allow-target", "127.0.0.0/8"),
        *("--feedback-interval", "20ms", *scene.certificate),
    )
    address = proxy.wait_for(r"listening on (\S+)")[1]
    access = scene.lab.start(
        *("relay", TANDEM, "lab", "relay", "--listen", "127.0.0.1:0", "--to", address),
        *("--rate", "20Mbit/s", "--delay", "10ms", "--loss", "2%"),
    )
    address = access.wait_for(r"listening on (\S+)")[1]
    out = scene.folder / "out"
    log = scene.lab.run(
        *("get", TANDEM, "get", f"https://127.0.0.1:{scene.origin_port}/{files.MEDIUM}"),
        *("--via", f"https://{address}", "--ca", files.CA, "--mode", "tecc", "-o", out, "--json"),
    )
    expect(files.sha256(out) == files.sha256(files.ROOT / files.MEDIUM), "another file came")
    expect('"mode":"tecc"' in log.read_text(), log.read_text())
    name = 'tandem_reports_total{event="followed"}'
    wait(lambda: scene.metric(name) > 10, "reports that the origin follows", TIMEOUT)


def nginx_stops_and_starts_again(scene: Scene) -> None:
    expect(scene.see("/readyz") == "ready\n", scene.see("/readyz"))
    scene.nginx.stop()
    status, fields, _ = scene.ask("GET", f"/{files.PAGE}", {})
    expect(status == 502 and "connection_refused" in fields["proxy-status"], f"{status}, {fields}")
    down = "the server behind the site is down\n"
    wait(lambda: scene.see("/readyz") == down, "word that nginx is down", TIMEOUT)
    expect(scene.metric("tandem_upstream_up") == 0, "the metric says that it is up")
    scene.start_nginx()
    status, *_ = scene.ask("GET", f"/{files.PAGE}", {})
    expect(status == 200, f"{status} after the start")
    wait(lambda: scene.see("/readyz") == "ready\n", "word that nginx is up", TIMEOUT)


CHECKS = [
    files_and_ranges_pass,
    a_form_reaches_the_application_and_says_who_sent_it,
    an_upload_reaches_nginx,
    websockets_pass_over_http3,
    websockets_pass_over_tcp,
    mode_tecc_sends_reports_to_the_origin,
    nginx_stops_and_starts_again,
]


def main() -> None:
    files.make()
    logs = files.OWN / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, Lab(logs) as lab:
        scene = Scene(lab, Path(folder))

        def bound(check):
            return functools.wraps(check)(lambda: check(scene))

        checks.main([bound(check) for check in CHECKS])


main()
