"""curl through `tandem client --proxy`."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

from files import CA, HUGE, LARGE, MEDIUM, PAGE, ROOT, sha256
from processes import Failure, Lab, free_port
from servers import Server
from tcp.tunnel import Tunnel, check, check_carried, check_equal, check_has, site

PROXY = ("--proxy", "127.0.0.1:0")
EACH = "%{num_connects}\\n"  # a line of curl for each URL
PROXY_FAILED = 97  # curl's exit code if SOCKS fails
CONNECT_FAILED = 56  # curl's exit code if CONNECT is refused


def curl(lab: Lab, *arguments, **options) -> str:
    """Runs curl, and returns what it printed."""
    command = ("curl", "-q", "--silent", "--show-error", "--max-time", "50", "--cacert", CA)
    log = lab.run("curl", *command, *arguments, **options)
    return log.read_text(errors="replace").split("\n", 1)[1]


def transfers(scheme: str, tls: bool, file: str) -> Callable[[Lab], None]:
    """Makes a case that downloads a file and sends it back, through a proxy of this scheme."""

    def run(lab: Lab) -> None:
        tunnel, server = Tunnel(lab, *PROXY), site(lab, tls)
        proxy = ("--proxy", f"{scheme}://{tunnel.address}")
        download(lab, server, tls, file, *proxy)
        upload(lab, server, tls, file, *proxy)
        length = (ROOT / file).stat().st_size
        check_carried(tunnel.proxy, server, up=length, down=length)

    return run


def download(lab: Lab, server: Server, tls: bool, file: str, *proxy: str) -> None:
    answer = lab.logs / "answer"
    curl(lab, *proxy, "--output", answer, url(server, tls, file))
    check_equal(answer, ROOT / file)
    answer.unlink()


def upload(lab: Lab, server: Server, tls: bool, file: str, *proxy: str) -> None:
    """Sends a file, which the site answers with its SHA-256."""
    found = curl(lab, *proxy, "--upload-file", ROOT / file, url(server, tls, "upload"))
    check("what the site received", found, sha256(ROOT / file))


def url(server: Server, tls: bool, path: str) -> str:
    return f"{'https' if tls else 'http'}://{server.address}/{path}"


def keeps_alive(lab: Lab) -> None:
    """Asks two sites in turn through one connection to the local proxy."""
    tunnel, first, second = Tunnel(lab, *PROXY), site(lab), site(lab)
    urls = [url(server, False, PAGE) for server in (first, second, first, second)]
    answers = [lab.logs / f"answer-{number}" for number in range(len(urls))]
    pairs = [word for pair in zip(urls, answers, strict=True) for word in (pair[0], "-o", pair[1])]
    proxy = ("--proxy", f"http://{tunnel.address}")
    printed = curl(lab, *proxy, "--write-out", EACH, *pairs)
    connections = sum(int(line) for line in printed.splitlines())
    check("the number of connections to the local proxy", connections, 1)
    for answer in answers:
        check_equal(answer, ROOT / PAGE)
    for server in (first, second):
        requests = re.findall(rf"GET /{PAGE} .*host {server.address}", server.process.text())
        check("the number of requests at a site", len(requests), 2)
        check_lean(server)


def check_lean(server: Server) -> None:
    """Checks that what is for the local proxy only has not reached the site."""
    if "proxy-" in (text := server.process.text()):
        raise Failure(f"a field for the proxy reached the site: {text[-300:]!r}")


def bodies(lab: Lab) -> None:
    """Sends bodies of each form through the local proxy, over one connection."""
    tunnel, server = Tunnel(lab, *PROXY), site(lab)
    proxy = ("--proxy", f"http://{tunnel.address}")
    target = url(server, False, "upload")
    digest = sha256(ROOT / MEDIUM)
    post = ("--data-binary", f"@{ROOT / MEDIUM}")
    at_once = ("--header", "Expect:")
    chunked = ("--header", "Transfer-Encoding: chunked")
    for fields in ((), at_once, chunked, (*chunked, *at_once)):
        check("what the site received", curl(lab, *proxy, *post, *fields, target), digest)
    stdin = {"stdin": ROOT / MEDIUM}
    found = curl(lab, *proxy, "--upload-file", "-", target, **stdin)
    check("what the site received", found, digest)
    check("the body of an empty POST", curl(lab, *proxy, "--data", "", target), sha256_of_nothing())
    check_carried(tunnel.proxy, server, up=5 * (ROOT / MEDIUM).stat().st_size)


def sha256_of_nothing() -> str:
    return sha256(Path("/dev/null"))


def not_found(lab: Lab) -> None:
    """Asks for a page that a site does not have, through each kind of proxy."""
    tunnel, plain, tls = Tunnel(lab, *PROXY), site(lab), site(lab, tls=True)
    for scheme in ("socks5h", "http"):
        for server in (plain, tls):
            target = url(server, server is tls, "missing")
            proxy = ("--proxy", f"{scheme}://{tunnel.address}")
            printed = curl(lab, *proxy, "--write-out", "%{http_code}", target)
            check("the answer", printed, "This site has no such page.\n404")


def refusals(lab: Lab) -> None:
    """Asks for targets that cannot be reached, and checks what curl is told. Afterwards the tunnel
    must still work."""
    tunnel, server = Tunnel(lab, *PROXY), site(lab)
    closed = free_port(socket.SOCK_STREAM)
    targets = (
        (f"127.0.0.1:{closed}", 5, 502, "connection_refused"),
        ("10.255.255.1:80", 2, 403, "destination_ip_prohibited"),
        ("no-such-host.invalid:80", 4, 502, "dns_error"),
        ("127.0.0.1:25", 2, 403, "http_request_denied"),  # port of mail servers
    )
    for target, reply, status, error in targets:
        socks = ("--proxy", f"socks5h://{tunnel.address}")
        printed = curl(lab, *socks, f"http://{target}/", expect=PROXY_FAILED)
        check_has(f"curl's message for {target}", printed, rf"\({reply}\)")
        http = ("--proxy", f"http://{tunnel.address}", "--include")
        printed = curl(lab, *http, f"http://{target}/")
        check_has(f"the answer for {target}", printed, rf"^HTTP/1\.1 {status} ")
        check_has(f"the answer for {target}", printed, rf"(?i)proxy-status: .*{error}")
        through = (*http, "--proxytunnel", f"http://{target}/")
        printed = curl(lab, *through, expect=CONNECT_FAILED)
        check_has(f"the answer for CONNECT {target}", printed, rf"^HTTP/1\.1 {status} ")
    download(lab, server, False, MEDIUM, "--proxy", f"http://{tunnel.address}")


def password(lab: Lab) -> None:
    """Checks that a local proxy with a password serves those who know it, and nobody else."""
    file = lab.logs / "password"
    file.write_text("user:secret word\n")
    file.chmod(0o600)
    tunnel, server = Tunnel(lab, *PROXY, "--proxy-password-file", file), site(lab)
    target = url(server, False, PAGE)
    for scheme in ("socks5h", "http"):
        proxy = ("--proxy", f"{scheme}://{tunnel.address}")
        answer = lab.logs / "answer"
        curl(lab, *proxy, "--proxy-user", "user:secret word", "--output", answer, target)
        check_equal(answer, ROOT / PAGE)
        for user in ((), ("--proxy-user", "user:wrong")):
            if scheme == "http":
                printed = curl(lab, *proxy, *user, "--write-out", "%{http_code}", target)
                check_has("the answer without the password", printed, "407$")
            else:
                curl(lab, *proxy, *user, target, expect=PROXY_FAILED)
    check_lean(server)
    check("the number of requests at the site", server.process.text().count("GET "), 2)


CASES = [
    *(
        (f"{scheme}://, {'https' if tls else 'http'} site", transfers(scheme, tls, file))
        for scheme, file in (("socks5h", LARGE), ("socks5", MEDIUM))
        for tls in (False, True)
    ),
    ("http://, http site, 50 MB", transfers("http", False, HUGE)),
    ("http://, https site by CONNECT, 50 MB", transfers("http", True, HUGE)),
    ("http://, two sites by one connection", keeps_alive),
    ("http://, bodies with lengths and in chunks", bodies),
    ("each scheme, a page that is missing", not_found),
    ("each scheme, targets that cannot be reached", refusals),
    ("each scheme, a password", password),
]
