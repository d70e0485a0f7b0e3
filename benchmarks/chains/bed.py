"""An origin and a chain of proxies, and downloads through them whose CPU time is measured.

A place is the loopback of this host, or two network namespaces with a link between them: the client and
all proxies are in the near one, and the origin is in the far one.
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from common import cpu_seconds, run_timed, stop

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").absolute()
TANDEM = os.environ.get("TANDEM") or str(BUILD / "release/tandem")
NEAR, FAR = "chains-near", "chains-far"
DIRECT = "mft"  # the mode without a tunnel
DEVICE = "chains"
RATE = "100mbit"
BURST = "3028"  # bytes: two packets on Ethernet, so that the link takes apart what was sent in one call
QUEUE = "1MB"
SIZES = {"loopback": 100_000_000, "link": 30_000_000}  # bytes of a download
PLACES = tuple(SIZES)
TIME_LIMIT = 120  # seconds of a download
START_TIMEOUT = 20  # seconds
SETTLE = 0.3  # seconds in which the servers close the connections of a download

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


class Bed:
    def __init__(self, place, length):
        self.place, self.length = place, length
        self.near = self.far = []
        self.processes, self.namespaces = [], []

    def __enter__(self):
        try:
            self.set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        stop(self.processes)
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=True)
        self.folder.cleanup()

    def set_up(self):
        self.folder = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.folder.name) / "file"
        file.write_bytes(os.urandom(SIZES[self.place]))
        self.sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        address = "127.0.0.1"
        if self.place == "link":
            address = "10.77.0.2"
            self.make_link()
        root = ["--listen", f"{address}:0", "--name", address, "--root", self.folder.name]
        allowed = ["--allow-target", "127.0.0.0/8", "--allow-target", "10.77.0.0/30"]
        # The modes of TECC need an origin that follows reports.
        self.origin = self.serve(self.far, "origin", *root)
        self.follower = self.serve(self.far, "origin", *root, "--controller", "tecc")
        proxy = ["proxy", "--listen", "127.0.0.1:0", *allowed]
        self.proxies = [self.serve(self.near, *proxy) for _ in range(self.length)]

    def make_link(self):
        for namespace in (NEAR, FAR):
            run("ip", "netns", "add", namespace)
            self.namespaces.append(namespace)
        self.near, self.far = (["ip", "netns", "exec", it] for it in (NEAR, FAR))
        pair = ["type", "veth", "peer", "name", DEVICE, "netns", FAR]
        run("ip", "link", "add", "name", DEVICE, "netns", NEAR, *pair)
        for number, inside in enumerate([self.near, self.far], 1):
            run(*inside, "ip", "address", "add", f"10.77.0.{number}/30", "dev", DEVICE)
            for device in ("lo", DEVICE):
                run(*inside, "ip", "link", "set", device, "up")
            limit = ["tbf", "rate", RATE, "burst", BURST, "limit", QUEUE]
            run(*inside, "tc", "qdisc", "add", "dev", DEVICE, "root", *limit)

    def serve(self, inside, *command):
        """Starts a server. Returns its process and its address."""
        process = subprocess.Popen(
            [*inside, TANDEM, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        stop = threading.Timer(START_TIMEOUT, process.kill)
        stop.start()
        for line in process.stderr:
            if line.startswith("listening on "):
                stop.cancel()
                # Nothing may wait because this pipe is full.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return process, line.split()[2]
        stop.cancel()
        raise SystemExit(f"{' '.join(process.args)} ended before it was ready")

    def download(self, mode, length):
        """What a download through this number of proxies costs."""
        origin, address = self.follower if mode == "tecc" else self.origin
        chain = self.proxies[:length]
        servers = [process.pid for process, _ in chain] + [origin.pid]
        command = [*self.near, TANDEM, "get", f"https://{address}/file", "--insecure", "--json",
                   "--quiet", "-o", "/dev/null", "--mode", mode]  # fmt: skip
        if chain:
            command.append("--require-mode")
        if length > 1:
            command += ["--beyond", mode]
        for _, proxy in chain:
            command += ["--via", f"https://{proxy}"]
        before = [cpu_seconds(pid) for pid in servers]
        client, out = run_timed(command, TIME_LIMIT)
        time.sleep(SETTLE)
        spent = [cpu_seconds(pid) - then for pid, then in zip(servers, before)]
        result = json.loads(out)
        if result["sha256"] != self.sha256 or result["granted"] != [mode] * length:
            raise SystemExit(f"this is not what was asked for: {result}")
        inner = result["connections"][-1]  # from end to end
        spent = [round(cpu, 6) for cpu in spent]
        of_proxies = {f"proxy{number}_s": cpu for number, cpu in enumerate(spent[:-1], 1)}
        return {
            "bytes": result["bytes"],
            "packets": inner["received"]["packets"],
            "packets_back": inner["sent"]["packets"],
            "goodput_mbps": round(result["goodput_mbps"], 1),
            "client_s": round(client, 6),
            **of_proxies,
            "origin_s": spent[-1],
        }


def run(*command):
    subprocess.run([*command], check=True)
