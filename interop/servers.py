"""The proxies and origins. Each has a function that starts it."""

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from files import BIN, CERT, KEY, ROOT
from processes import Failure, Lab, Process, free_port

HERE = Path(__file__).parent
TANDEM = os.environ.get("TANDEM", "tandem")
LISTENING = r"listening on 127\.0\.0\.1:(\d+)"
IDENTITY = ("--cert", CERT, "--key", KEY)
LARGE_START = 40  # seconds until a large program of others listens, on a host that is busy
LARGEST_PAYLOAD = 1500  # bytes; no flow of the matrix carries more in a datagram


@dataclass
class Server:
    """A running server."""

    process: Process
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "") -> str:
        return f"https://{self.address}/{path}"

    def check_carried(self, target: "Server", length: int, uploaded: bool) -> None:
        """Checks that at least `length` bytes passed through this proxy of Tandem, to the target or
        from it. Ends the proxy first, because the flows of clients that vanished are still open."""
        self.process.stop()
        counter = "to_target" if uploaded else "to_client"
        closed = rf"flow closed.* destination={re.escape(target.address)} .*\b{counter}=(\d+)"
        datagrams = sum(map(int, re.findall(closed, self.process.text())))
        if datagrams * LARGEST_PAYLOAD < length:
            raise Failure(f"only {datagrams} datagrams passed between a proxy and its target")


def packaged(*path: str) -> Path:
    """Returns a program that a package of the virtual environment contains, and lets it be run."""
    [program] = Path(sys.prefix).glob("lib/python3*/site-packages/" + "/".join(path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def tandem_proxy(lab: Lab, *options) -> Server:
    listen = (
        "--listen", "127.0.0.1:0", "--allow-target", "127.0.0.0/8", "--drain", "0s",
        "--log-flows", "targets",
    )
    return listening(lab.start("tandem-proxy", TANDEM, "proxy", *listen, *IDENTITY, *options))


def masque_go_proxy(lab: Lab, program: str = "masque-go-proxy") -> Server:
    """Starts masque-go's proxy. It answers 400 unless the authority is exactly its template's."""
    port = free_port()
    template = f"https://127.0.0.1:{port}/.well-known/masque/udp/{{target_host}}/{{target_port}}/"
    command = ("-t", template, "-b", f"127.0.0.1:{port}", "-c", CERT, "-k", KEY)
    process = lab.start("masque-go-proxy", BIN / program, *command)
    process.wait_for_port(port)
    return Server(process, port)


def tandem_origin(lab: Lab, options: tuple[str, ...] = ()) -> Server:
    listen = ("--listen", "127.0.0.1:0", "--root", ROOT)
    return listening(lab.start("tandem-origin", TANDEM, "origin", *listen, *IDENTITY, *options))


def quic_go_origin(lab: Lab, *options: str) -> Server:
    command = (BIN / "quic-go-origin", "-root", ROOT, "-cert", CERT, "-key", KEY, *options)
    return listening(lab.start("quic-go-origin", *command))


def quic_go_origin_hybrid(lab: Lab) -> Server:
    """Knows no key exchange but X25519MLKEM768."""
    return quic_go_origin(lab, "-hybrid")


def quic_go_origin_1200(lab: Lab) -> Server:
    """Starts with packets that fit, which grow up to the client's limit."""
    return quic_go_origin(lab, "-initial", "1200")


def aioquic_origin(lab: Lab) -> Server:
    command = (sys.executable, HERE / "aioquic/origin.py", ROOT, CERT, KEY)
    return listening(lab.start("aioquic-origin", *command))


def ngtcp2_origin(lab: Lab) -> Server:
    port = free_port()
    listen = ("127.0.0.1", str(port), KEY, CERT)
    process = lab.start("ngtcp2-origin", "gtlsserver", "--quiet", "--htdocs", ROOT, *listen)
    process.wait_for_port(port)
    return Server(process, port)


def h3_proxy(lab: Lab) -> Server:
    return listening(lab.start("h3-proxy", BIN / "interop-h3", "proxy", CERT, KEY))


def h3_origin(lab: Lab) -> Server:
    return listening(lab.start("h3-origin", BIN / "interop-h3", "origin", CERT, KEY, ROOT))


def echo(lab: Lab) -> Server:
    """Starts a UDP server that sends back what it receives."""
    port = free_port()
    command = (sys.executable, HERE / "programs/inside/echo.py", "serve", "127.0.0.1", str(port))
    return listening(lab.start("echo", *command))


def listening(process: Process) -> Server:
    """Waits for the line in which a server prints the address at which it listens."""
    return Server(process, int(process.wait_for(LISTENING)[1]))
