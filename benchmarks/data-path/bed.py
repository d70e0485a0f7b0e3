"""The contestants, what they are built of, and a tunnel of each through which the load generator sends."""

import dataclasses
import functools
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time

from common import Failed, Processes

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").absolute()
BUILD = TARGET / "data-path"
LOAD, RELAY = BUILD / "release/load", BUILD / "release/relay"
MASQUE_GO = BUILD / "masque-go"
CERTIFICATES = BUILD / "certificates"
CA, CERT, KEY = (CERTIFICATES / name for name in ("ca.pem", "cert.pem", "key.pem"))
GENERATOR_CPU, SINK_CPU = 0, 1  # the client shares the first one, the proxy the second one
ANY_PORT = "127.0.0.1:0"
START_TIMEOUT = 30  # seconds
ANSWER_TIMEOUT = 120  # seconds

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


@dataclasses.dataclass
class Contestant:
    """`proxy` and `client` make command lines: from the targets, and from the proxy's address and the targets."""

    name: str
    proxy: object
    client: object
    idle: object  # opens idle connections: from the proxy's address, a target, and two counts
    program: str = ""
    is_tandem: bool = False


def tandem(name, program):
    def proxy(_):
        return [program, "proxy", "--listen", ANY_PORT, "--cert", CERT, "--key", KEY, "--allow-target", "127.0.0.0/8", "--drain", "0s"]

    def client(address, targets):
        udp = [word for target in targets for word in ("--udp", f"{ANY_PORT}={target}")]
        return [program, "client", "--via", f"https://{address}", "--ca", CA, *udp]

    return Contestant(name, proxy, client, masque_idle, program, True)


def masque_idle(address, target, connections, flows):
    return [MASQUE_GO, "idle", address, CA, target, connections, flows]


QUINN = Contestant(
    "quinn",
    lambda targets: [RELAY, "proxy", ANY_PORT, CERT, KEY, *targets],
    lambda address, targets: [RELAY, "client", address, CA, *[ANY_PORT] * len(targets)],
    lambda address, _, connections, flows: [RELAY, "idle", address, CA, connections, flows],
)
MASQUE = Contestant(
    "masque-go",
    lambda _: [MASQUE_GO, "proxy", ANY_PORT, CERT, KEY],
    lambda address, targets: [MASQUE_GO, "client", address, CA, *(f"{ANY_PORT}={target}" for target in targets)],
    masque_idle,
)
PEERS = {one.name: one for one in (QUINN, MASQUE)}


def need(program, advice):
    if shutil.which(program) is None:
        raise SystemExit(f"{program} is missing: {advice}")


def build(peers, tandems, with_idle):
    """Builds what the run needs, and checks that the rest is there."""
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("this needs two CPUs")
    need("taskset", "apt-get install util-linux")
    need("cargo", "install a stable Rust toolchain, see https://rustup.rs")
    for one in tandems:
        if not os.access(one.program, os.X_OK):
            raise SystemExit(f"{one.program} is missing: run cargo build --release, or name another file with --tandem")
    cargo = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", HERE / "tools/Cargo.toml"]
    subprocess.run([*cargo, "--target-dir", BUILD], check=True)
    if "masque-go" in peers or with_idle:
        need("go", "install Go 1.25 or newer (apt-get install golang, or https://go.dev), or use --peers quinn, and --only without memory")
        subprocess.run(["go", "build", "-o", MASQUE_GO, "."], cwd=HERE / "masque-go", check=True)
    make = [tandems[0].program, "generate", "certificate", CERTIFICATES]
    if not CERT.exists():
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)


def start(command, addresses, cpu=None, **options):
    """Starts a server. Returns its process, and the addresses at which it says that it listens."""
    pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
    environment = os.environ | {"RUST_LOG": "warn"}
    process = subprocess.Popen(
        [*pinned, *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env=environment, **options,
    )  # fmt: skip
    killer = threading.Timer(START_TIMEOUT, process.kill)
    killer.start()
    found, said = [], []
    for line in process.stderr:
        said.append(line)
        if line.startswith("listening on "):
            found.append(line.split()[2])
        if len(found) == addresses:
            killer.cancel()
            # Nothing may wait because this pipe is full.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found
    killer.cancel()
    process.wait()
    raise Failed(f"{' '.join(map(str, command))} ended before it was ready: {''.join(said[-3:])}")


class Tunnel(Processes):
    """A client and a proxy, the load generator before them, and its targets behind them."""

    def __init__(self, contestant):
        super().__init__()
        self.contestant = contestant

    def set_up(self):
        command = [str(word) for word in (LOAD, GENERATOR_CPU, SINK_CPU)]
        self.load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.processes.append(self.load)
        self.answers = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()
        targets = self.answer().split()
        proxy, (address,) = self.serve(self.contestant.proxy(targets), 1, SINK_CPU)
        client, entrances = self.serve(self.contestant.client(address, targets), len(targets), GENERATOR_CPU)
        self.ask("through", *entrances, proxy.pid, client.pid)

    def serve(self, command, addresses, cpu):
        process, found = start(command, addresses, cpu)
        self.processes.append(process)
        return process, found

    def listen(self):
        for line in self.load.stdout:
            self.answers.put(line)
        self.answers.put("")

    def answer(self):
        try:
            line = self.answers.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            line = ""
        if not line:
            raise Failed(f"the load generator for {self.contestant.name} does not answer")
        return line

    def ask(self, *words):
        """Has the load generator do something. Returns its answer."""
        try:
            self.load.stdin.write(" ".join(map(str, words)) + "\n")
        except BrokenPipeError:
            raise Failed(f"the load generator for {self.contestant.name} has ended") from None
        answer = json.loads(self.answer())
        if "error" in answer:
            raise Failed(f"{self.contestant.name}: {answer['error']}")
        return answer


@functools.cache
def memory_of_page():
    return os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    """The memory of a process in RAM, in bytes."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * memory_of_page()


def cpu_seconds(pid):
    """User and system time of all threads of a process, also of those that have ended, in nanoseconds' precision."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
