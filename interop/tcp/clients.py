"""Clients of other projects that use our proxy for TCP."""

import clients
import servers
from clients import Client, Transfer
from files import HUGE, LARGE, MEDIUM, PAGE, ROOT, sha256
from processes import Lab
from tcp.tunnel import check, check_carried, site

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


PAGES = (Transfer(PAGE), Transfer(PAGE), Transfer(MEDIUM), Transfer(PAGE))  # as in the matrix
LIBCURL = clients.libcurl("http1.1")
FIREFOX = clients.firefox("http/1.1")
CASES = [
    ("libcurl", "CONNECT over HTTP/3, downloads", transfers(LIBCURL, True, *DOWNLOADS)),
    ("libcurl", "CONNECT over HTTP/3, upload", transfers(LIBCURL, True, *UPLOAD)),
    ("firefox", "CONNECT over HTTP/3, pages and downloads", transfers(FIREFOX, True, *PAGES)),
    ("firefox", "CONNECT over HTTP/3, upload", transfers(FIREFOX, True, *UPLOAD)),
]
