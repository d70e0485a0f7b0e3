"""Clients that encrypt their ClientHello (RFC 9849) for an origin on quic-go, whose HTTPS records ask for it."""

import re

from choosing.names import ZONE
from files import BIN, CA, CERT, KEY, PAGE, ROOT
from fleet.network import ORIGIN
from processes import Failure
from servers import TANDEM

PUBLIC = "origin.test"  # a name of the certificate


def fetch(bed, *options: str) -> tuple[str, str]:
    """Fetches a page. Returns what the client said, and what the origin saw of the name."""
    command = (BIN / "quic-go-origin", "-root", ROOT, "-cert", CERT, "-key", KEY, "-listen", f"{ORIGIN}:443")
    origin = bed.lab.start("quic-go-origin", *bed.network.origin.inside(*command, "-ech", PUBLIC, *options))
    origin.wait_for("listening on")
    configurations = re.search(r" ech ([\w+/=]{60,})", origin.text())[1]
    bed.names.serve(f"@ A {ORIGIN}\n@ HTTPS 1 . alpn=h3 ech={configurations}")
    command = (TANDEM, "-vv", "get", f"https://{ZONE}/{PAGE}", "--ca", CA, "-o", bed.lab.logs / "file")
    client = bed.lab.run("get", *bed.network.client.inside(*command)).read_text()
    return client, ", ".join(re.findall(r"name .*", origin.text()))


def expect(seen: str, expected: str) -> None:
    if seen != expected:
        raise Failure(f"the origin saw: {seen}; expected: {expected}")


def the_name_is_encrypted(bed) -> str:
    _, seen = fetch(bed)
    expect(seen, f"name {ZONE}, encrypted true")
    return seen


def fetch_at_second_attempt(bed, option: str) -> str:
    """Fetches a page from an origin that rejects what its records say. Returns what the origin saw of the name."""
    client, seen = fetch(bed, option)
    if client.count("rejects ECH") != 1:
        raise Failure("the client says nothing of a rejection")
    return seen


def a_replaced_key_is_learned(bed) -> str:
    seen = fetch_at_second_attempt(bed, "-ech-replaced")
    expect(seen, f"name {ZONE}, encrypted true")
    return f"at the second attempt: {seen}"


def a_server_without_it_is_asked_again(bed) -> str:
    seen = fetch_at_second_attempt(bed, "-ech-off")
    expect(seen, f"name {ZONE}, encrypted false")
    return f"at the second attempt, after it had proven to be {PUBLIC}: {seen}"
