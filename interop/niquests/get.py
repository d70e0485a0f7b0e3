"""Fetches a URL over HTTP/3 with niquests and qh3: get.py CA-FILE URL OUTPUT"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import niquests

VERSION = 30  # HTTP/3, as urllib3-future numbers it


def main(ca: str, url: str, output: str) -> None:
    with niquests.Session() as session:
        location = urlsplit(url)
        # Without this, niquests would ask over TCP whether there is HTTP/3.
        session.quic_cache_layer.add_domain(location.hostname, location.port)
        response = session.get(url, verify=ca)
        response.raise_for_status()
        if response.raw.version != VERSION:
            sys.exit(f"the transfer did not use HTTP/3: {response.raw.version}")
        Path(output).write_bytes(response.content)


main(*sys.argv[1:])
