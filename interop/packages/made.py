"""What the checks look at: a release, packages of an older version, and a web server that has the release."""

import atexit
import json
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from machines import leave_the_network, output

PROJECT = Path(__file__).resolve().parents[2]
# A release for tests must not depend on what an operator has set.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_RELEASE_")}


def version() -> str:
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--no-deps", "--quiet", cwd=PROJECT))
    return next(package["version"] for package in metadata["packages"] if package["name"] == "tandem")


FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)
OLD, NEW = "0.1.0", version()
NAME = f"tandem-{NEW}-x86_64-linux"
ARCHIVE = f"{NAME}.tar.gz"
PROGRAM = FOLDER / "tandem"
KEY = FOLDER / "key.pem"
WEB = FOLDER / "web"  # each folder in it looks like a release
RELEASE = WEB / "release"


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder. It says that a file whose name with .cut exists is as long as that one."""

    asked: list[str] = []

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=str(WEB))

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        whole = Path(self.translate_path(self.path) + ".cut")
        if keyword == "Content-Length" and whole.exists():
            value = str(whole.stat().st_size)
        super().send_header(keyword, value)


PORT = 8000
URL = f"http://127.0.0.1:{PORT}"


@contextmanager
def temporary():
    """A folder for one check."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield Path(folder)


def new_key(file: Path) -> None:
    """Makes a key that signs, for this test only."""
    output("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", file)


def sign(folder: Path, key: Path = KEY) -> None:
    """Signs the checksums in a folder as a release does."""
    output("openssl", "dgst", "-sha256", "-sign", key, "-out", folder / "SHA256SUMS.sig", folder / "SHA256SUMS")


def release(*arguments, **options) -> str:
    """Runs deploy/release.sh. The environment is without the two variables unless they are in `environment`."""
    environment = {**ENVIRONMENT, **options.pop("environment", {})}
    return output(PROJECT / "deploy/release.sh", *arguments, env=environment, timeout=600, **options)


def make() -> None:
    """Makes the release and the older packages, and starts the web server."""
    # Lines of the source are most of a program that tests have built.
    output("strip", "--strip-debug", "-o", PROGRAM, os.environ["TANDEM"])
    new_key(KEY)
    environment = {**ENVIRONMENT, "VERSION": OLD, "TANDEM": str(PROGRAM)}
    output(PROJECT / "deploy/package.sh", FOLDER / "old", env=environment, timeout=600)
    variables = {"TANDEM_RELEASE_KEY": str(KEY), "TANDEM_RELEASE_URL": f"{URL}/release"}
    release("--program", PROGRAM, RELEASE, environment=variables)
    # What is made may download; what is checked may not.
    leave_the_network()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
