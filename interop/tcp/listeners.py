"""Programs that know nothing of tunnels, at a listener of `tandem client --tcp` or of `tandem
connect`, and UDP by SOCKS5."""

import socket
import sys

from files import HUGE, LARGE, MEDIUM, ROOT, sha256
from processes import Failure, Lab, free_port
from servers import HERE, TANDEM, Server, echo, listening
from tcp.curl import download, upload
from tcp.tunnel import INSIDE, Tunnel, check, check_carried, check_has, ends, site


def forward(target: Server) -> tuple[str, str]:
    return ("--tcp", f"127.0.0.1:0={target.address}")


def ncat(lab: Lab) -> None:
    """Sends a file with ncat. The far end answers after the end of its input only."""
    target = ends(lab)
    tunnel = Tunnel(lab, *forward(target))
    given = lab.logs / "given"
    given.write_bytes(b"digest\n" + (ROOT / LARGE).read_bytes())
    log = lab.run("ncat", "ncat", "127.0.0.1", str(tunnel.port), stdin=given)
    found = log.read_text().split("\n", 1)[1]
    check("what the far end received", found, sha256(ROOT / LARGE))
    check_carried(tunnel.proxy, target, up=given.stat().st_size)


def redis(lab: Lab) -> None:
    """Stores and fetches values of a database."""
    port = free_port(socket.SOCK_STREAM)
    alone = ("--bind", "127.0.0.1", "--save", "", "--dir", lab.logs)
    process = lab.start("redis-server", "redis-server", "--port", str(port), *alone)
    process.wait_for("Ready to accept connections")
    target = Server(process, port)
    tunnel = Tunnel(lab, *forward(target))
    command = ("redis-cli", "-p", str(tunnel.port))
    lab.run("redis-cli", *command, "-x", "SET", "file", stdin=ROOT / MEDIUM)
    length = (ROOT / MEDIUM).stat().st_size
    found = printed(lab, *command, "STRLEN", "file")
    check("the length of the value", found, f"{length}\n")
    (pipeline := lab.logs / "pipeline").write_text("INCR counter\r\n" * 10_000)
    lab.run("redis-cli", *command, "--pipe", stdin=pipeline)
    check("the counter", printed(lab, *command, "GET", "counter"), "10000\n")
    # The newline at its end is redis-cli's.
    log = lab.run("redis-cli", *command, "GET", "file").read_bytes().split(b"\n", 1)[1]
    check("the value", log == (ROOT / MEDIUM).read_bytes() + b"\n", True)
    check_carried(tunnel.proxy, target, up=length, down=length)


def printed(lab: Lab, *command) -> str:
    return lab.run("redis-cli", *command).read_text().split("\n", 1)[1]


def socks_udp(lab: Lab) -> None:
    """Sends UDP payloads to three servers, by names and by addresses."""
    tunnel = Tunnel(lab, "--proxy", "127.0.0.1:0")
    dns_port = free_port()
    dns = (HERE / "programs/inside/dns_server.py", "127.0.0.1", str(dns_port))
    targets = [echo(lab), echo(lab), listening(lab.start("dns-server", sys.executable, *dns))]
    ports = [str(server.port) for server in (tunnel.client, *targets)]
    lab.run("socks-udp", sys.executable, INSIDE / "socks_udp.py", *ports)
    tunnel.proxy.process.stop()
    flows = tunnel.proxy.process.text().count("flow opened")
    if flows < len(targets):
        raise Failure(f"only {flows} flows were opened at the proxy")


def pair(lab: Lab) -> None:
    """Reaches one site through `tandem serve` and `tandem connect`, which trust only each other."""
    target = site(lab)
    folder = lab.logs / "pair"
    listen = ("--listen", "127.0.0.1:0")
    serve = ("serve", "--dest", target.address, *listen, "--pair", folder)
    server = listening(lab.start("tandem-serve", TANDEM, *serve))
    connect = ("connect", "--dest", server.address, *listen, "--pair", folder / "client.pem")
    client = listening(lab.start("tandem-connect", TANDEM, *connect))
    download(lab, client, False, HUGE)
    upload(lab, client, False, HUGE)
    length = (ROOT / HUGE).stat().st_size
    check_carried(server, target, up=length, down=length, is_named=False)


def stranger(lab: Lab) -> None:
    """Comes to `tandem serve` with the files of another pair, which must lead nowhere."""
    target = site(lab)
    listen = ("--listen", "127.0.0.1:0")
    folders = [lab.logs / name for name in ("pair", "other-pair")]
    serve = ("serve", "--dest", target.address, *listen, "--pair")
    servers = [listening(lab.start("tandem-serve", TANDEM, *serve, folder)) for folder in folders]
    connect = ("connect", "--dest", servers[0].address, *listen, "--pair")
    log = lab.run("tandem-connect", TANDEM, *connect, folders[1] / "client.pem", expect=1)
    check_has("what tandem connect prints", log.read_text(), "not the server of the pair")


CASES = [
    ("ncat", "--tcp, half-close", ncat),
    ("redis-cli", "--tcp, values and a pipeline", redis),
    ("PySocks", "UDP ASSOCIATE with three targets, names and addresses", socks_udp),
    ("curl", "tandem serve and tandem connect, 50 MB", pair),
    ("curl", "tandem connect with the files of another tandem serve", stranger),
]
