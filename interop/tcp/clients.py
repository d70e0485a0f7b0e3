"""Clients of other projects that use our proxy for TCP."""

import socket
import sys

import clients
import servers
from clients import Client, Transfer
from files import CA, HUGE, LARGE, MEDIUM, PAGE, ROOT, sha256
from processes import Lab, free_port, last_line
from servers import HERE, TANDEM
from tcp.tunnel import check, check_carried, check_has, ends, site

DOWNLOADS = (Transfer(PAGE), Transfer(HUGE))
UPLOAD = (Transfer(LARGE, upload=True),)


def transfers(client: Client, tls: bool, *which: Transfer):
    """Makes a case in which a client performs transfers with a site on TCP."""

    def run(lab: Lab) -> None:
        proxy, target = servers.tandem_proxy(lab), site(lab, tls)
        found = client(lab, [proxy], target, which)
        check("SHA-256", found, [sha256(ROOT / transfer.file) for transfer in which])
        up = sum((ROOT / t.file).stat().st_size for t in which if t.upload)
        down = sum((ROOT / t.file).stat().st_size for t in which if not t.upload)
        check_carried(proxy, target, up=up, down=down)

    return run


TOKEN = "a-token-of-the-test"
PASSWORD = "correct horse: battery"


def by_hand(form: str):
    """Makes a case in which aioquic asks in this form. Ends of connections must pass both ways."""

    def run(lab: Lab) -> None:
        tokens = lab.logs / "tokens"
        tokens.write_text(f"{TOKEN}\n")
        tokens.chmod(0o600)
        proxy, target = servers.tandem_proxy(lab, "--token-file", tokens), ends(lab)
        closed = f"127.0.0.1:{free_port(socket.SOCK_STREAM)}"
        words = (form, CA, proxy.address, target.address, closed, TOKEN)
        lab.run("aioquic-connect", sys.executable, HERE / "aioquic/connect.py", *words)
        # Each connection of the target has a thread, and on a busy host their lines come in any order.
        wanted = ["digest: 1000000 bytes and FIN", "finish: 11 bytes and FIN"]
        wanted += ["finish: 0 bytes and RST"]
        if form == "connect-tcp":
            wanted += ["finish: 3 bytes and RST"]
        target.process.wait_for(r"(.+ and (FIN|RST)\n){%d}\Z" % len(wanted))
        seen = target.process.text().splitlines()[-len(wanted) :]
        # The second RST may overtake the 3 bytes before it.
        overtaken = [*wanted[:-1], "finish: 0 bytes and RST"]
        check("how connections ended", sorted(seen) in (sorted(wanted), sorted(overtaken)), True)

    return run


def login(lab: Lab) -> None:
    """A user name and a password are the name of a token and the token, or those of a hash of the password."""
    given = lab.logs / "password"
    given.write_text(f"{PASSWORD}\n")
    hashed = lab.run("tandem-generate", TANDEM, "generate", "password", "carol", stdin=given)
    tokens = lab.logs / "tokens"
    tokens.write_text(f"alice {TOKEN}\n{last_line(hashed.read_text())}\n")
    tokens.chmod(0o600)
    proxy, target = servers.tandem_proxy(lab, "--token-file", tokens), site(lab, True)
    answer = lab.logs / "answer"
    url = f"https://{target.address}/{PAGE}"
    command = (sys.executable, HERE / "libcurl/get.py", "http1.1", CA, proxy.url(), url, answer)
    for wrong in (f"bob:{TOKEN}", "alice:a-token-that-is-wrong", f"alice:{PASSWORD}", f"carol:{TOKEN}"):
        lab.run("libcurl", *command, env={"LOGIN": wrong}, expect=1)
    for right in (f"alice:{TOKEN}", f":{TOKEN}", f"carol:{PASSWORD}"):
        lab.run("libcurl", *command, env={"LOGIN": right})
        check("SHA-256", sha256(answer), sha256(ROOT / PAGE))
    proxy.process.stop()
    for user in ("alice", "carol"):
        check_has("the proxy's log", proxy.process.text(), f"flow opened .*user={user}")


PAGES = (Transfer(PAGE), Transfer(PAGE), Transfer(MEDIUM), Transfer(PAGE))  # as in the matrix
LIBCURL = clients.libcurl("http1.1")
FIREFOX = clients.firefox("http/1.1")
CASES = [
    ("libcurl", "CONNECT over HTTP/3, downloads", transfers(LIBCURL, True, *DOWNLOADS)),
    ("libcurl", "CONNECT over HTTP/3, upload", transfers(LIBCURL, True, *UPLOAD)),
    ("libcurl", "CONNECT over HTTP/3, user and password", login),
    ("firefox", "CONNECT over HTTP/3, pages and downloads", transfers(FIREFOX, True, *PAGES)),
    ("firefox", "CONNECT over HTTP/3, upload", transfers(FIREFOX, True, *UPLOAD)),
    ("aioquic", "CONNECT over HTTP/3 by hand", by_hand("connect")),
    ("aioquic", "connect-tcp with capsules by hand", by_hand("connect-tcp")),
]
