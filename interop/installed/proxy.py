"""What all cases share: a proxy with two users, and profiles that `tandem generate profile` writes for them."""

from pathlib import Path

import servers
from files import CA, CERT
from processes import Lab
from servers import TANDEM, Server
from tcp.tunnel import check_has

TOKENS = {"alice": "a-token-of-alice", "bob": "b0b.s/token+of=="}
USER = "alice"


def proxy_with_users(lab: Lab) -> Server:
    """Starts a proxy that serves those who show one of the tokens."""
    return servers.tandem_proxy(lab, "-v", "--token-file", tokens(lab))


def tokens(lab: Lab) -> Path:
    """Returns a file with the tokens of all users, as the proxy has it."""
    file = lab.logs / "tokens"
    if not file.exists():
        file.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
        file.chmod(0o600)
    return file


def profile(
    lab: Lab, kind: str, *proxies: Server, user: str = USER, name: str = "", options: tuple = ()
) -> Path:
    """Returns a file with the user's profile. Like that of an operator, it comes from the file of the proxy."""
    file = lab.logs / (name or f"{kind}-profile")
    via = [word for proxy in proxies for word in ("--via", proxy.url())]
    command = (TANDEM, "generate", "profile", kind, *via, "--user", user, "--token-file", tokens(lab))
    lab.run("tandem-generate", *command, "-o", file, *options)
    return file


def check_user(proxy: Server, target: Server, user: str = USER) -> None:
    """Checks that the proxy has logged a flow of the user to the target. Ends the proxy, so that it has logged all."""
    proxy.process.stop()
    text = proxy.process.text()
    check_has("the proxy's log", text, rf"flow opened .*user={user} destination={target.address}")


__all__ = ["CA", "CERT", "TOKENS", "USER", "check_user", "profile", "proxy_with_users", "tokens"]
