"""Proxies of other projects, which know CONNECT but not connect-tcp, with our client."""

import re
import socket
import struct
import sys
from collections.abc import Callable

import envoy
from files import BIN, CERT, KEY, MEDIUM, PAGE, ROOT, sha256
from processes import END_TIMEOUT, Lab, free_port
from servers import HERE, Server, listening, tandem_proxy
from tcp.curl import CONNECT_FAILED, curl, download, upload
from tcp.tunnel import Tunnel, check, check_has, ends, site

Proxy = Callable[[Lab], Server]


def quic_go(status: int) -> Proxy:
    """Starts a proxy that gives this answer to connect-tcp."""

    def start(lab: Lab) -> Server:
        options = ("-cert", CERT, "-key", KEY, "-status", str(status))
        return listening(lab.start("quic-go-proxy", BIN / "quic-go-connect-proxy", *options))

    return start


def aioquic(lab: Lab) -> Server:
    """Starts a proxy that does not announce extended CONNECT."""
    program = (HERE / "aioquic/connect_proxy.py", CERT, KEY)
    return listening(lab.start("aioquic-proxy", sys.executable, *program))


def falls_back(start: Proxy) -> Callable[[Lab], None]:
    """Makes a case in which the client must find out that the proxy knows CONNECT only."""

    def run(lab: Lab) -> None:
        proxy = start(lab)
        tunnel, server = Tunnel(lab, "--proxy", "127.0.0.1:0", proxy=proxy), site(lab)
        local = ("--proxy", f"socks5h://{tunnel.address}")
        # These bytes follow the first request, so that the client has to send them again.
        upload(lab, server, False, MEDIUM, *local)
        download(lab, server, False, MEDIUM, *local)
        download(lab, server, False, PAGE, *local)
        requests = server.process.text()
        found = re.findall(r'"(\w+) /\S+ HTTP/1.1" 200', requests)
        check("what the site was asked", found, ["PUT", "GET", "GET"])
        if start is not envoy.tcp_proxy:  # which logs no requests
            check_requests(proxy, 3, server)

    return run


def check_requests(proxy: Server, connections: int, target: Server) -> None:
    """Checks that the client asked with connect-tcp, if the proxy announces extended CONNECT, and then
    with CONNECT."""
    # The client first asks for a target that there is not, to find out whether its token is good.
    found = re.findall(r"CONNECT (\S+) (?!right\.invalid)(\S+)", proxy.process.text())
    if "quic-go" in proxy.process.log.name:
        # The client's own question, and the first request of a program.
        for _ in range(2):
            check("the first requests", found.pop(0), ("connect-tcp", proxy.address))
    for protocol, authority in found:
        check_has("the protocol of CONNECT", protocol, r"^HTTP/3")
        check("the target of CONNECT", authority, target.address)
    check("the number of connections", len(found), connections)


def half_close(start: Proxy) -> Callable[[Lab], None]:
    """Makes a case in which the target answers after the end of its input."""

    def run(lab: Lab) -> None:
        proxy, target = start(lab), ends(lab)
        tunnel = Tunnel(lab, "--tcp", f"127.0.0.1:0={target.address}", proxy=proxy)
        given = lab.logs / "given"
        given.write_bytes(b"digest\n" + (ROOT / MEDIUM).read_bytes())
        log = lab.run("ncat", "ncat", "127.0.0.1", str(tunnel.port), stdin=given)
        check("the answer", log.read_text().split("\n", 1)[1], sha256(ROOT / MEDIUM))
        check_has("the target's log", target.process.text(), "digest: 5000000 bytes and FIN")

    return run


def resets(start: Proxy) -> Callable[[Lab], None]:
    """Makes a case in which first the target and then the program resets its connection."""

    def run(lab: Lab) -> None:
        proxy, target = start(lab), ends(lab)
        tunnel = Tunnel(lab, "--tcp", f"127.0.0.1:0={target.address}", proxy=proxy)
        with connection(tunnel, b"reset\n") as program:
            program.sendall(b"\n")
            try:
                check("what came after the target's RST", program.recv(1), "an error")
            except ConnectionResetError:
                pass
        with connection(tunnel, b"finish\n") as program:
            check("what came after the target's FIN", program.recv(1), b"")
            program.sendall(b"more")
            program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        target.process.wait_for(r"finish: [04] bytes and RST")

    return run


def connection(tunnel: Tunnel, command: bytes) -> socket.socket:
    """Opens a connection to the server of `ends`, gives it a command, and waits for its answer."""
    program = socket.create_connection(("127.0.0.1", tunnel.port), timeout=END_TIMEOUT)
    program.sendall(command)
    check("the answer", program.recv(3, socket.MSG_WAITALL), b"bye")
    return program


def refuses(start: Proxy) -> Callable[[Lab], None]:
    """Makes a case in which the proxy cannot reach the first target. The client must tell this from
    a proxy that does not know connect-tcp."""

    def run(lab: Lab) -> None:
        proxy, server = start(lab), site(lab)
        tunnel = Tunnel(lab, "--proxy", "127.0.0.1:0", proxy=proxy)
        local = ("--proxy", f"http://{tunnel.address}")
        closed = f"http://127.0.0.1:{free_port()}/"
        found = curl(lab, *local, "--proxytunnel", "--include", closed, expect=CONNECT_FAILED)
        check_has("the answer", found, "^HTTP/1.1 50[23] ")  # Envoy's is 503
        download(lab, server, False, PAGE, *local)

    return run


QUIC_GO = ("quic-go", "as the proxy, 501 to connect-tcp", quic_go(501))
AIOQUIC = ("aioquic", "as the proxy, without extended CONNECT", aioquic)
ENVOY = ("envoy", "as the proxy, without connect-tcp", envoy.tcp_proxy)
CHECKS = [
    ("uploads and downloads", falls_back),
    ("half-close", half_close),
    ("resets", resets),
    ("a target that refuses", refuses),
]
CASES = [
    (project, f"{form}, {does}", make(start))
    for project, form, start in (QUIC_GO, AIOQUIC, ENVOY)
    for does, make in CHECKS
    # Envoy tells a target with FIN of a reset.
    if (start, make) != (envoy.tcp_proxy, resets)
]
CASES += [
    ("quic-go", f"as the proxy, {status} to connect-tcp", falls_back(quic_go(status)))
    for status in (400, 404, 405)
]
CASES.append(("tandem", "as the proxy, resets", resets(tandem_proxy)))
