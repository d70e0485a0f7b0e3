"""The clients. Each is a function that performs transfers with one origin and returns their SHA-256
values. The value of a download is that of the received bytes. The origin returns that of an
upload."""

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from files import BIN, CA, CACHE, CERT, ROOT, fingerprint, sha256
from processes import Lab
from servers import HERE, TANDEM, Server, listening


@dataclass(frozen=True)
class Transfer:
    file: str
    upload: bool = False


FLUPKE = ("java", "-cp", f"{CACHE}/flupke/lib/*:{CACHE}/flupke/classes", "Peer")
PICOQUIC = (CACHE / "picoquic/bin/python", HERE / "picoquic/peer.py")
Client = Callable[[Lab, list[Server], Server, tuple[Transfer, ...]], list[str]]


def one_by_one(run: Callable) -> Client:
    """Makes a client from a function that performs one transfer and writes the answer to a file."""

    def client(lab, proxies, origin, transfers):
        def hash_of(transfer: Transfer) -> str:
            answer = lab.logs / f"{transfer.file}.answer"
            upload = ROOT / transfer.file if transfer.upload else None
            run(lab, proxies, origin.url(transfer.file), answer, upload)
            found = answer.read_text().strip() if upload else sha256(answer)
            answer.unlink()
            return found

        return [hash_of(transfer) for transfer in transfers]

    return client


def tandem(*options: str) -> Client:
    """Runs `tandem get` with these options."""

    @one_by_one
    def get(lab: Lab, proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
        command = (TANDEM, "get", "-v", "-q", url, "-o", answer, *via(proxies), "--ca", CA)
        lab.run("tandem-get", *command, *options)

    return get


def masque_go(program: str) -> Client:
    """Runs masque-go's client, which writes the body to its log, between the time and a newline."""

    @one_by_one
    def get(lab: Lab, proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
        [proxy] = proxies
        template = proxy.url(".well-known/masque/udp/{target_host}/{target_port}/")
        log = lab.run("masque-go-client", BIN / program, "-t", template, url)
        head, body = log.read_bytes().split(b"HTTP status: 200\n", 1)
        answer.write_bytes(body[len("2026/11/21 11:21:11 ") : -1])
        log.write_bytes(head)

    return get


def libcurl(http: str) -> Client:
    """Runs libcurl, which uses the proxy over HTTP/3 and the origin over this version of HTTP."""

    @one_by_one
    def get(lab: Lab, proxies: list[Server], url: str, answer: Path, upload: Path | None) -> None:
        [proxy] = proxies
        command = [sys.executable, HERE / "libcurl/get.py", http, CA, proxy.url(), url, answer]
        lab.run("libcurl", *command, *([upload] if upload else []))

    return get


@one_by_one
def quic_go(lab: Lab, _proxies: list[Server], url: str, answer: Path, upload: Path | None) -> None:
    command = [BIN / "quic-go-get", "-o", answer, *(["-upload", upload] if upload else []), url]
    lab.run("quic-go-get", *command)


@one_by_one
def quic_go_hybrid(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("quic-go-get", BIN / "quic-go-get", "-hybrid", "-o", answer, url)


@one_by_one
def aioquic(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("aioquic-get", sys.executable, HERE / "aioquic/get.py", CA, url, answer)


@one_by_one
def niquests(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("niquests", sys.executable, HERE / "niquests/get.py", CA, url, answer)


@one_by_one
def ngtcp2(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    """Runs ngtcp2's client, which does not check certificates."""
    folder = lab.logs / "ngtcp2"
    folder.mkdir(exist_ok=True)
    location = urlsplit(url)
    options = ("--quiet", "--exit-on-all-streams-close", "--download", folder)
    command = ("gtlsclient", *options, location.hostname, location.port, url)
    lab.run("ngtcp2-client", *map(str, command))
    (folder / Path(location.path).name).rename(answer)


@one_by_one
def h3(lab: Lab, proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("h3-get", BIN / "interop-h3", "get", CA, url, answer, *(p.url() for p in proxies))


@one_by_one
def flupke(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("flupke-get", *FLUPKE, "get", CA, by_name(url), answer)


def flupke_echo(lab: Lab, proxy: Server, target: Server) -> None:
    """Sends payloads in capsules to an echo server, which is how flupke can use a proxy."""
    lab.run("flupke-echo", *FLUPKE, "echo", CA, by_name(proxy.url()), target.address)


@one_by_one
def picoquic(lab: Lab, _proxies: list[Server], url: str, answer: Path, _upload: None) -> None:
    lab.run("picoquic-get", *PICOQUIC, "get", CA, url, answer)


def picoquic_echo(lab: Lab, proxy: Server, target: Server) -> None:
    """Sends payloads in datagrams to an echo server."""
    lab.run("picoquic-echo", *PICOQUIC, "echo", CA, proxy.url(), target.address)


def by_name(url: str) -> str:
    """Returns the URL with a host's name, since kwik finds no IP addresses in certificates."""
    return url.replace("127.0.0.1", "localhost")


def forwarded(inner: Client) -> Client:
    """Runs a client without support for proxies through `tandem client --udp`."""

    def client(lab, proxies, origin, transfers):
        udp = f"127.0.0.1:0={origin.address}"
        command = (TANDEM, "client", "--udp", udp, *via(proxies), "--ca", CA)
        forwarder = listening(lab.start("tandem-client", *command))
        hashes = inner(lab, [], forwarder, transfers)
        forwarder.process.stop()
        return hashes

    return client


def firefox(protocol: str, add_on: Path | None = None) -> Client:
    """Runs Firefox, which uses the proxy over HTTP/3 and the origin over this protocol. It has the add-on of the suite,
    or one of `tandem generate profile`."""

    def client(lab, proxies, origin, transfers):
        [proxy] = proxies
        plan = {
            "proxy": proxy.port,
            "origin": origin.port,
            "protocol": protocol,
            "ca": base64.b64encode(CA.read_bytes()).decode(),
            "transfers": [[transfer.file, transfer.upload] for transfer in transfers],
        }
        if add_on:
            plan |= {"add-on": str(add_on), "id": "proxy@tandem.invalid"}
        command = (sys.executable, HERE / "firefox/visit.py", json.dumps(plan), lab.logs)
        return lab.run("firefox", *command).read_text().rsplit("hashes: ", 1)[-1].split()

    return client


def chromium(lab, _proxies, origin, transfers):
    plan = {
        "origin": origin.port,
        "key": fingerprint(CERT),
        "files": [transfer.file for transfer in transfers],
    }
    command = (sys.executable, HERE / "chromium/visit.py", json.dumps(plan), lab.logs)
    return lab.run("chromium", *command).read_text().rsplit("hashes: ", 1)[-1].split()


def chromium_in_socks(lab, client, site, transfers):
    """Runs Chromium with the SOCKS5 port of a `tandem client`, and a site on TCP."""
    plan = {
        "origin": site.port,
        "key": fingerprint(CERT),
        "files": [transfer.file for transfer in transfers],
        "socks": client.address,
    }
    command = (sys.executable, HERE / "chromium/visit.py", json.dumps(plan), lab.logs)
    return lab.run("chromium", *command).read_text().rsplit("hashes: ", 1)[-1].split()


def via(proxies: list[Server]) -> list[str]:
    return [word for proxy in proxies for word in ("--via", proxy.url())]
