"""Programs that fetch packages and sources through `tandem client --proxy`: git, apt and pip."""

import base64
import hashlib
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from files import CA, sha256
from processes import Lab
from servers import Server
from tcp.tunnel import Tunnel, check, check_carried, check_equal, site

PROXY = ("--proxy", "127.0.0.1:0")
PAYLOAD = 2_000_000  # bytes of each package and repository


def git(variables: Callable[[str], dict[str, str]]) -> Callable[[Lab], None]:
    """Makes a case that clones a repository over HTTPS and pushes to it. The function returns the
    environment of git for the address of the local proxy."""

    def run(lab: Lab) -> None:
        root = lab.logs / "root"
        repository = make_repository(root / "git")
        tunnel, server = Tunnel(lab, *PROXY), site(lab, tls=True, root=root)
        url = f"https://{server.address}/git/{repository.name}"
        env = {**GIT_ALONE, "GIT_SSL_CAINFO": str(CA), **variables(tunnel.address)}
        copy = lab.logs / "copy"
        lab.run("git-clone", "git", "clone", url, copy, env=env)
        check_equal(copy / "payload", root / "git/tree/payload")
        check("the commit", commit(copy), commit(repository))
        (copy / "answer").write_bytes(random.randbytes(PAYLOAD))
        commit_all(copy)
        lab.run("git-push", "git", "-C", copy, "push", "origin", "HEAD", env=env)
        check("the pushed commit", commit(repository), commit(copy))
        lab.run("git-fsck", "git", "-C", repository, "fsck", "--full", "--strict", env=env)
        check_carried(tunnel.proxy, server, up=PAYLOAD, down=PAYLOAD)

    return run


# Neither the system's settings nor the user's count, and git asks for nothing.
GIT_ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "interop",
    "GIT_AUTHOR_EMAIL": "interop@interop.test",
    "GIT_COMMITTER_NAME": "interop",
    "GIT_COMMITTER_EMAIL": "interop@interop.test",
}


def make_repository(folder: Path) -> Path:
    """Makes a repository with one commit that accepts pushes, and its work tree beside it."""
    tree, bare = folder / "tree", folder / "repository.git"
    tree.mkdir(parents=True)
    git_output("init", "--quiet", "--initial-branch", "main", tree)
    (tree / "payload").write_bytes(random.randbytes(PAYLOAD))
    commit_all(tree)
    git_output("clone", "--quiet", "--bare", tree, bare)
    git_output("-C", bare, "config", "http.receivepack", "true")
    return bare


def commit_all(work: Path) -> None:
    git_output("-C", work, "add", ".")
    git_output("-C", work, "commit", "--quiet", "--message", "Add bytes")


def commit(repository: Path) -> str:
    return git_output("-C", repository, "rev-parse", "main")


def git_output(*arguments) -> str:
    env = {**os.environ, **GIT_ALONE}
    return subprocess.run(
        ("git", *arguments), check=True, stdout=subprocess.PIPE, text=True, env=env
    ).stdout.strip()


def apt(scheme: str) -> Callable[[Lab], None]:
    """Makes a case that downloads a package of a local repository with apt."""

    def run(lab: Lab) -> None:
        root = lab.logs / "root"
        package = make_debian_repository(root)
        tunnel, server = Tunnel(lab, *PROXY), site(lab, root=root)
        options = apt_options(lab.logs / "apt", server, f"{scheme}://{tunnel.address}")
        lab.run("apt-update", "apt-get", *options, "update")
        answer = lab.logs / "answer"
        answer.mkdir()
        lab.run("apt-download", "apt-get", *options, "download", "interop", cwd=answer)
        check_equal(answer / package.name, package)
        check_carried(tunnel.proxy, server, down=PAYLOAD)

    return run


def make_debian_repository(root: Path) -> Path:
    """Makes a repository with the package `interop`, and returns the package."""
    tree = root / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "payload").write_bytes(random.randbytes(PAYLOAD))
    control = (
        "Package: interop\nVersion: 1.0\nArchitecture: all\n"
        "Maintainer: interop <interop@interop.test>\nDescription: random bytes\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    package = root / "interop_1.0_all.deb"
    command = ("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, package)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    index = root / "Packages"
    index.write_text(
        f"{control}Filename: ./{package.name}\nSize: {package.stat().st_size}\n"
        f"SHA256: {sha256(package)}\n"
    )
    entry = f" {sha256(index)} {index.stat().st_size} Packages\n"
    date = subprocess.run(
        ("date", "-Ru"), check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    (root / "Release").write_text(f"Date: {date}\nSHA256:\n{entry}")
    return package


def apt_options(folder: Path, server: Server, proxy: str) -> list[str]:
    """Returns options with which apt keeps to this folder, this repository and this proxy."""
    for part in ("lists/partial", "archives/partial", "etc/parts", "etc/trusted"):
        (folder / part).mkdir(parents=True)
    (folder / "etc/sources.list").write_text(f"deb [trusted=yes] http://{server.address} ./\n")
    (folder / "status").touch()
    settings = {
        "Acquire::http::Proxy": proxy,
        "Acquire::Retries": "0",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
        "Dir::Etc::Main": os.devnull,
        "Dir::Etc::Parts": folder / "etc/parts",
        "Dir::Etc::SourceList": folder / "etc/sources.list",
        "Dir::Etc::SourceParts": folder / "etc/parts",
        "Dir::Etc::TrustedParts": folder / "etc/trusted",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Cache::Archives": folder / "archives",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def pip(lab: Lab) -> None:
    """Downloads a package of a local index over HTTPS with pip."""
    root = lab.logs / "root"
    wheel = make_index(root)
    tunnel, server = Tunnel(lab, *PROXY), site(lab, tls=True, root=root)
    answer = lab.logs / "answer"
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--retries", "0", "--proxy", f"http://{tunnel.address}"]
    command += ["--cert", CA, "download", "--no-deps", "--dest", answer]
    command += ["--index-url", f"https://{server.address}/simple", "interop"]
    # This variable, if the machine has it, takes precedence over the flag.
    lab.run("pip", *command, env={"REQUESTS_CA_BUNDLE": str(CA)})
    check_equal(answer / wheel.name, wheel)
    check_carried(tunnel.proxy, server, down=PAYLOAD)


def make_index(root: Path) -> Path:
    """Makes an index (PEP 503) with the package `interop`, and returns its wheel."""
    folder = root / "simple/interop"
    folder.mkdir(parents=True)
    wheel = folder / "interop-1.0-py3-none-any.whl"
    files = {
        "interop.bin": random.randbytes(PAYLOAD),
        "interop-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: interop\nVersion: 1.0\n",
        "interop-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "interop-1.0.dist-info/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    (folder / "index.html").write_text(
        f'<!doctype html><a href="{wheel.name}#sha256={sha256(wheel)}">{wheel.name}</a>\n'
    )
    return wheel


def digest(data: bytes) -> str:
    """Returns the SHA-256 in the form of a wheel's list of files."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


GIT_CASES = [
    ("https_proxy=http://, clone and push", git(lambda at: {"https_proxy": f"http://{at}"})),
    ("ALL_PROXY=socks5h://, clone and push", git(lambda at: {"ALL_PROXY": f"socks5h://{at}"})),
]
APT_CASES = [(f"{scheme}://, update and download", apt(scheme)) for scheme in ("http", "socks5h")]
PIP_CASES = [("--proxy http://, download over HTTPS", pip)]
