"""What the documents expect of the world: names, Let's Encrypt, servers for HTTP/3 and HTTPS, and two networks.

The hosts are network namespaces, whose names only these checks see. Knot DNS and Pebble are real; the Internet has one
address.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import knot
import made
from checks import Failure
from machines import mount, output
from namespaces import Host, Hosts, connect

HERE = Path(__file__).parent
INTERNET, SERVER, HOME = "11.22.1.1", "11.22.1.2", "11.22.2.2"  # nobody else in these namespaces has these addresses
NAMES = {
    "proxy.example": SERVER,
    "server.example": SERVER,
    "acme-v02.api.letsencrypt.org": INTERNET,
    "cloudflare-quic.com": INTERNET,
    "example.org": INTERNET,
    "sh.rustup.rs": INTERNET,
    "tandem.example": INTERNET,
    "www.example": SERVER,
}
PAGE = "<!doctype html><title>It came</title>\n"


class Network(Hosts):
    """The Internet, which also is the router between a server and a home."""

    def __init__(self):
        super().__init__("internet", "server", "home")
        self.internet, self.server, self.home = self.all

    def make(self) -> None:
        connect(self.internet, INTERNET, self.server, SERVER)
        connect(self.internet, "11.22.2.1", self.home, HOME)
        self.server.ip("route", "add", "default", "via", INTERNET)
        self.home.ip("route", "add", "default", "via", "11.22.2.1")
        self.internet.set("net.ipv4.ip_forward", 1)


class World:
    """The servers of the Internet, and the certificates of those whom everybody trusts."""

    def __init__(self, folder: Path, network: Network, stack: ExitStack):
        self.folder, self.network, self.stack = folder, network, stack
        self.trusted: list[str] = []
        self.make_certificates()
        self.start_names()
        self.start_authority()
        self.start_web()

    def start(self, name: str, ready: str, *command, host: Host | None = None, **environment: str) -> None:
        """Starts a server, of the Internet unless told otherwise, and waits until its log says that it is ready."""
        log = self.folder / f"{name}.log"
        words = (host or self.network.internet).inside(*map(str, command))
        with log.open("w") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **environment}
            )
        self.stack.callback(process.wait, 20)
        self.stack.callback(process.terminate)
        for _ in range(200):
            if ready in log.read_text():
                return
            if process.poll() is not None:
                break
            time.sleep(0.05)
        raise Failure(f"{name} does not start: {log.read_text()[-400:]}")

    def make_certificates(self) -> None:
        """One authority, and one certificate for all names of the Internet."""
        folder = self.folder
        names = ",".join(f"DNS:{name}" for name, address in NAMES.items() if address == INTERNET)
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        authority = ("-keyout", folder / "ca-key.pem", "-out", folder / "ca.pem", "-subj", "/CN=Trusted by everybody")
        output("openssl", "req", "-x509", *key, *authority)
        files = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=The Internet")
        extensions = ("-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE")
        issuer = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca-key.pem")
        output("openssl", "req", "-x509", *issuer, *key, *files, *extensions)
        self.trusted.append((folder / "ca.pem").read_text())

    def start_names(self) -> None:
        lines = [f"{name}. A {address}" for name, address in NAMES.items()]
        command = knot.configure(self.folder, INTERNET, ".", "\n".join(lines))
        self.start("knot", "server started", *command)

    def start_authority(self) -> None:
        """Pebble, the server for tests of Let's Encrypt."""
        output(made.PROGRAM, "generate", "certificate", self.folder / "api")
        config = {
            "listenAddress": "127.0.0.1:14000",
            "managementListenAddress": "127.0.0.1:15000",
            "certificate": str(self.folder / "api/cert.pem"),
            "privateKey": str(self.folder / "api/key.pem"),
            "httpPort": 80,
            "tlsPort": 443,
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "the only one", "validityPeriod": 90 * 24 * 60 * 60}},
        }
        (self.folder / "pebble.json").write_text(json.dumps({"pebble": config}))
        pebble = (os.environ["PEBBLE"], "-config", self.folder / "pebble.json", "-dnsserver", f"{INTERNET}:53")
        self.start("pebble", "ACME directory available", *pebble, PEBBLE_VA_NOSLEEP="1")
        # As the management port is on the host, so is who asks it.
        ask = ("curl", "--silent", "--fail", "--retry", "20", "--retry-connrefused", "--insecure")
        url = "https://127.0.0.1:15000/roots/0"
        self.trusted.append(output(*self.network.internet.inside(*ask, url)))

    def start_web(self) -> None:
        web = self.folder / "web"
        for host in ("example.org", "cloudflare-quic.com", "sh.rustup.rs"):
            (web / host).mkdir(parents=True)
            (web / host / "index.html").write_text(PAGE)
        (web / "sh.rustup.rs/index.html").write_bytes((HERE / "stand-ins/rustup.sh").read_bytes())
        (web / "tandem.example").mkdir()
        published(web / "tandem.example" / made.NEW)
        certificate = (self.folder / "cert.pem", self.folder / "key.pem")
        self.start("web", "listening", sys.executable, HERE / "web.py", *certificate, web, 14000)
        origin = ("origin", "--listen", f"{INTERNET}:443", "--root", web / "cloudflare-quic.com")
        self.start("origin", "listening", made.PROGRAM, *origin, "--cert", certificate[0], "--key", certificate[1])

    def serve_files_on_the_server(self, port: int) -> None:
        """A TCP service that only the server reaches."""
        files = ("--bind", "127.0.0.1", "--directory", self.folder / "web/example.org")
        host = self.network.server
        self.start("service", "Serving HTTP", sys.executable, "-u", "-m", "http.server", port, *files, host=host)


def published(folder: Path) -> None:
    """The release as it would be at the address that the documents give."""
    output("cp", "-r", made.RELEASE, folder)
    script = folder / "install.sh"
    script.write_text(script.read_text().replace(f"{made.URL}/release", f"https://tandem.example/{made.NEW}"))
    digest = output("sha256sum", "install.sh", cwd=folder)
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text("".join(digest if "install.sh" in line else line for line in lines))
    made.sign(folder)


@contextmanager
def world():
    """The world, until the context ends; then its servers and all programs on its hosts end."""
    with ExitStack() as stack:
        # Names of network namespaces are mounts.
        mount(stack, Path("/run/netns"), "-t", "tmpfs", "tmpfs")
        folder = stack.enter_context(made.temporary())
        network = stack.enter_context(Network())
        stack.callback(lambda: [end_programs(host) for host in network.all])
        yield World(folder, network, stack)


def end_programs(host: Host) -> None:
    """Ends all programs on a host."""
    for _ in range(50):
        running = output("ip", "netns", "pids", host.namespace).split()
        if not running:
            return
        output("kill", "-KILL", *running)
        time.sleep(0.1)
    raise Failure(f"{host.namespace} still runs programs")
