"""HTTP/3 downloads with `tandem get` through proxies, and what each process spends on them.

    get --- proxy 1 --- proxy 2 --- origin                  Tandem's own, and other proxies for CONNECT-UDP as proxy 1
    get --- client --- proxy --- origin                     peers with a protocol of their own
"""

import functools
import json
import os
import pathlib
import tempfile
import time

import bed
from common import Processes, cpu_seconds, run_timed, start
from rounds import Part

MODES = ["mdt", "forward", "uack", "mst", "msgt", "rmdt", "tecc"]
DIRECT = "mft"  # the mode without a tunnel
RELAYED = "relayed"  # a local port instead of a mode
TIME_LIMIT = 300  # seconds of a download
SETTLE = 0.3  # seconds in which the servers close the connections of a download
RATES = {"masque-go": 1e9, "sing-hysteria2": 400e6}  # bit/s, estimates
RATE = 1.5e9


class Site(Processes):
    """The servers of one contestant. The origin and the downloader are Tandem's everywhere."""

    def __init__(self, contestant, program, folder):
        super().__init__()
        self.contestant, self.program, self.folder = contestant, program, folder

    def serve(self, command):
        process, (address,), _ = start(command, 1)
        self.processes.append(process)
        return process.pid, address

    def set_up(self):
        keys = ["--cert", bed.CERT, "--key", bed.KEY]
        root = [self.program, "origin", "--listen", bed.ANY_PORT, "--root", self.folder, *keys]
        self.origin = self.serve(root)
        targets = [self.origin[1]]
        proxies = 2 if self.contestant.is_tandem else 1
        self.proxies = [self.serve(self.contestant.proxy(targets)) for _ in range(proxies)]
        self.entrance, self.follower = None, None
        if self.contestant.is_tandem:
            # The mode tecc needs an origin that follows reports.
            self.follower = self.serve([*root, "--controller", "tecc"])
        if relays(self.contestant):
            self.entrance = self.serve(self.contestant.own_client(self.proxies[0][1], targets))

    def download(self, hops, mode):
        pid, address = self.follower if mode == "tecc" else self.origin
        chain = self.proxies[:hops]
        servers = {"origin": pid} | {f"proxy{number}": it for number, (it, _) in enumerate(chain, 1)}
        command = [self.program, "get", "--ca", bed.CA, "--json", "--quiet", "-o", "/dev/null"]
        if self.entrance:
            servers["entrance"], address = self.entrance
        elif hops:
            command += ["--mode", mode, "--require-mode"]
            command += [word for _, proxy in chain for word in ("--via", via(proxy, self.contestant))]
        before = {name: cpu_seconds(it) for name, it in servers.items()}
        spent, out = run_timed([*command, f"https://{address}/file"], TIME_LIMIT)
        time.sleep(SETTLE)
        result = json.loads(out)
        gigabytes = result["bytes"] / 1e9
        spent = {"get": spent} | {name: cpu_seconds(it) - before[name] for name, it in servers.items()}
        per_gb = {f"{name}_s_per_gb": round(seconds / gigabytes, 3) for name, seconds in spent.items()}
        return {"goodput_mbps": round(result["goodput_mbps"], 1)} | per_gb


def relays(contestant):
    return contestant.protocol != "connect-udp"


def via(address, contestant):
    """Others have a path with a slash at its end, and no default."""
    if contestant.is_tandem:
        return f"https://{address}"
    return f"https://{address}/.well-known/masque/udp/{{target_host}}/{{target_port}}/"


class Downloads(Part):
    name = "downloads"

    def __init__(self, given, program):
        ways = [(0, DIRECT), *((hops, mode) for hops in (1, 2) for mode in given.modes), (1, RELAYED)]
        super().__init__(given.download_rounds, [{"hops": hops, "mode": mode, "bytes": given.bytes} for hops, mode in ways])
        self.program, self.length = program, given.bytes

    @functools.cached_property
    def folder(self):
        """It is removed with this object."""
        folder = tempfile.TemporaryDirectory()
        (pathlib.Path(folder.name) / "file").write_bytes(os.urandom(self.length))
        return folder

    def site(self, contestant):
        return Site(contestant, contestant.program or self.program, self.folder.name)

    def takes(self, contestant, case):
        if case["mode"] == RELAYED:
            return relays(contestant)
        return contestant.is_tandem or not relays(contestant) and (case["hops"], case["mode"]) == (1, "mdt")

    def seconds(self, contestant, case):
        slower = 1 + 0.3 * (case["hops"] == 2)
        return case["bytes"] * 8 * slower / RATES.get(contestant.name, RATE) + 1

    def run(self, site, case):
        return site.download(case["hops"], case["mode"])
