"""Profiles for Apple's systems: checked against the schema of the payload, and used by an aioquic client that does
what the schema says. No device of Apple takes part."""

import plistlib
import re
import sys
from pathlib import Path

import servers
from files import CA, PAGE, ROOT, sha256
from installed.proxy import CERT, TOKENS, profile, proxy_with_users
from processes import Failure, Lab
from servers import HERE
from tcp.tunnel import check, check_has, site

# Facts of mdm/profiles/com.apple.relay.managed.yaml, CommonPayloadKeys.yaml and TopLevel.yaml in Apple's repository
# device-management: each key, its type, and whether it must be there.
UUID = r"[0-9A-Za-z]{8}-[0-9A-Za-z]{4}-[0-9A-Za-z]{4}-[0-9A-Za-z]{4}-[0-9A-Za-z]{12}"
COMMON = {
    "PayloadIdentifier": (str, True),
    "PayloadUUID": (str, True),
    "PayloadType": (str, True),
    "PayloadVersion": (int, True),
    "PayloadDescription": (str, False),
    "PayloadDisplayName": (str, False),
    "PayloadOrganization": (str, False),
}
TOP = {**COMMON, "PayloadContent": (list, True)}
PAYLOAD = {
    **COMMON,
    "Relays": (list, True),
    "MatchDomains": (list, False),
    "ExcludedDomains": (list, False),
    "RelayUUID": (str, False),
}
RELAY = {
    "HTTP3RelayURL": (str, False),
    "HTTP2RelayURL": (str, False),
    "AdditionalHTTPHeaderFields": (dict, False),
    "PayloadCertificateUUID": (str, False),
    "RawPublicKeys": (list, False),
}


def check_keys(what: str, found: dict, schema: dict) -> None:
    for key, value in found.items():
        if key not in schema:
            raise Failure(f"{what} has the unknown key {key}")
        if type(value) is not schema[key][0]:
            raise Failure(f"{what}: {key} is a {type(value).__name__}")
    for key, (_, is_required) in schema.items():
        if is_required and key not in found:
            raise Failure(f"{what} has no {key}")


def check_schema(file: Path) -> None:
    """Checks a profile against the facts of the schema."""
    check("the mode of the file", oct(file.stat().st_mode & 0o777), "0o600")
    top = plistlib.loads(file.read_bytes(), fmt=plistlib.FMT_XML)
    check_keys("the profile", top, TOP)
    check("PayloadType", top["PayloadType"], "Configuration")
    [payload] = top["PayloadContent"]
    check_keys("the payload", payload, PAYLOAD)
    check("PayloadType of the payload", payload["PayloadType"], "com.apple.relay.managed")
    for part in (top, payload):
        check("PayloadVersion", part["PayloadVersion"], 1)
        check_has("PayloadUUID", part["PayloadUUID"], rf"^{UUID}$")
        check_has("PayloadIdentifier", part["PayloadIdentifier"], r"^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$")
    for key in ("PayloadIdentifier", "PayloadUUID"):
        check(f"two parts with one {key}", top[key] == payload[key], False)
    for relay in payload["Relays"]:
        check_keys("a relay", relay, RELAY)
        urls = [relay[key] for key in ("HTTP2RelayURL", "HTTP3RelayURL") if key in relay]
        check("that a relay has a URL", bool(urls), True)
        for url in urls:
            check_has("the URL", url, r"^https://[^/]+/.*\{target_host\}.*\{target_port\}")
        for name, value in relay.get("AdditionalHTTPHeaderFields", {}).items():
            check_has("the name of a field", name, r"^[A-Za-z-]+$")
            check("the type of a field", type(value), str)
        for key in relay.get("RawPublicKeys", []):
            check("the type of a key", type(key), bytes)
    for key in ("MatchDomains", "ExcludedDomains"):
        for domain in payload.get(key, []):
            check_has(key, domain, r"^[a-z0-9-]+(\.[a-z0-9-]+)*$")


def play(lab: Lab, file: Path, *urls: str) -> list[str]:
    """Lets aioquic use a profile. Returns what it prints."""
    check_schema(file)
    log = lab.run("aioquic-relay", sys.executable, HERE / "aioquic/relay.py", file, CA, *urls)
    return re.findall(r"^\S+ (?:direct|relays .*)$", log.read_text(), re.MULTILINE)


def one_relay(lab: Lab) -> None:
    """TCP and UDP through one relay, to those domains that the profile names."""
    proxy, target, echo = proxy_with_users(lab), site(lab), servers.echo(lab)
    domains = ("--domain", "localhost", "--exclude-domain", "home.localhost")
    file = profile(lab, "apple", proxy, options=domains)
    urls = (
        f"http://localhost:{target.port}/{PAGE}",
        f"udp://localhost:{echo.port}",
        f"udp://home.localhost:{echo.port}",
        f"http://a.home.localhost:{target.port}/{PAGE}",
        f"http://127.0.0.1:{target.port}/{PAGE}",
    )
    wanted = [
        f"localhost relays 200 {sha256(ROOT / PAGE)}",
        "localhost relays 200 echo",
        "home.localhost direct",
        "a.home.localhost direct",
        "127.0.0.1 direct",
    ]
    check("what aioquic printed", play(lab, file, *urls), wanted)
    proxy.process.stop()
    flows = re.findall(r"flow opened .*user=alice destination=(\S+)", proxy.process.text())
    check("the number of flows of the user", len(flows), 2)


def chain(lab: Lab) -> None:
    """Each relay behind the one before it, with its own key instead of a CA for one relay alone."""
    first, second = proxy_with_users(lab), proxy_with_users(lab)
    target, echo = site(lab), servers.echo(lab)
    urls = (f"http://{target.address}/{PAGE}", f"udp://{echo.address}")
    wanted = [f"127.0.0.1 relays 200 {sha256(ROOT / PAGE)}", "127.0.0.1 relays 200 echo"]
    file = profile(lab, "apple", first, second, user="bob")
    check("what aioquic printed", play(lab, file, *urls), wanted)
    file = profile(lab, "apple", second, user="bob", name="pinned", options=("--cert", CERT))
    check("what aioquic printed", play(lab, file, *urls), wanted)
    for proxy in (first, second):
        proxy.process.stop()
        check_has("the proxy's log", proxy.process.text(), "flow opened .*user=bob")
    check_has("the first proxy's log", first.process.text(), f"destination={second.address}")


def another_token(lab: Lab) -> None:
    """A profile with a token that the proxy does not know is of no use."""
    proxy, target = proxy_with_users(lab), site(lab)
    file = profile(lab, "apple", proxy)
    file.write_text(file.read_text().replace(TOKENS["alice"], "a-token-of-mallory"))
    url = f"http://{target.address}/{PAGE}"
    check("what aioquic printed", play(lab, file, url), ["127.0.0.1 relays 407"])


CASES = [
    ("aioquic", "with a profile for Apple's systems: domains, TCP and UDP", one_relay),
    ("aioquic", "with a profile for Apple's systems: a chain, and a key instead of a CA", chain),
    ("aioquic", "with a profile for Apple's systems, and another token", another_token),
]
