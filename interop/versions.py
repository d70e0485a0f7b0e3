"""The versions of the programs, as the programs and their packages report them."""

import functools
import importlib.metadata
import re
import subprocess

from curl_cffi import Curl

from files import BIN
from servers import TANDEM


@functools.cache
def version(project: str) -> str:
    match project:
        case "tandem":
            return first_number(output(TANDEM, "--version"))
        case "masque-go" | "quic-go":
            built_from = output("go", "version", "-m", BIN / "masque-go-proxy")
            return first_number(re.search(rf"quic-go/{project}\s.*", built_from)[0])
        case "firefox":
            return first_number(output("firefox-esr", "--version"))
        case "wireguard-go":
            built_from = output("go", "version", "-m", BIN / "wireguard")
            return re.search(r"wireguard\s+v(\S+)", built_from)[1]
        case "openvpn" | "iperf3" | "kdig":
            return first_number(output(project, "--version"))
        case "mosh":
            return first_number(output("mosh-server", "--version"))
        case "dig":
            return first_number(output("dig", "-v"))
        case "libcurl":
            return first_number(Curl().version().decode())
    return importlib.metadata.version(project)


def output(*command) -> str:
    """Returns what a program prints, some of them to stderr."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, check=True, text=True, **both).stdout


def first_number(text: str) -> str:
    return re.search(r"\d+(\.\d+)+", text)[0]
