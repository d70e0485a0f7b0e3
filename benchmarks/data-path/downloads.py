"""HTTP/3 downloads with `tandem get` through proxies, and what each process spends on them.

    get --- proxy 1 --- proxy 2 --- origin                  Tandem's own, and masque-go's proxy as proxy 1
    get --- relay client --- relay proxy --- origin         the relay on quinn
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time

import bed
from common import Processes, run_timed

MODES = ["mdt", "mst", "rmdt", "tecc", "forward"]
DIRECT = "mft"  # the mode without a tunnel
RELAYED = "relayed"  # the relay on quinn has a local port instead of a mode
TIME_LIMIT = 300  # seconds of a download
SETTLE = 0.3  # seconds in which the servers close the connections of a download


class Site(Processes):
    """The servers of one contestant. The origin and the downloader are Tandem's everywhere."""

    def __init__(self, name, program, folder, peer=None):
        super().__init__()
        self.name, self.program, self.folder, self.peer = name, program, folder, peer

    def serve(self, command):
        process, (address,) = bed.start(command, 1)
        self.processes.append(process)
        return process.pid, address

    def set_up(self):
        keys = ["--cert", bed.CERT, "--key", bed.KEY]
        root = [self.program, "origin", "--listen", bed.ANY_PORT, "--root", self.folder, *keys]
        self.origin = self.serve(root)
        self.entrance, self.proxies, self.follower = None, [], None
        if self.peer is None:
            # The mode tecc needs an origin that follows reports.
            self.follower = self.serve([*root, "--controller", "tecc"])
            proxy = bed.tandem(self.name, self.program).proxy([])
            self.proxies = [self.serve(proxy) for _ in range(2)]
        else:
            targets = [self.origin[1]]
            self.proxies = [self.serve(self.peer.proxy(targets))]
            if self.peer is bed.QUINN:
                self.entrance = self.serve(self.peer.client(self.proxies[0][1], targets))

    def ways(self, modes):
        """(number of proxies, mode) of each download."""
        if self.entrance:
            return [(1, RELAYED)]
        if self.peer:
            return [(1, "mdt")] if "mdt" in modes else []
        return [(0, DIRECT), *((hops, mode) for hops in (1, 2) for mode in modes)]

    def download(self, hops, mode):
        pid, address = self.follower if mode == "tecc" else self.origin
        chain = self.proxies[:hops]
        servers = {"origin": pid} | {f"proxy{number}": it for number, (it, _) in enumerate(chain, 1)}
        command = [self.program, "get", "--ca", bed.CA, "--json", "--quiet", "-o", "/dev/null"]
        if self.entrance:
            servers["entrance"], address = self.entrance
        elif hops:
            command += ["--mode", mode, "--require-mode"]
            command += [word for _, proxy in chain for word in ("--via", via(proxy, self.peer))]
        before = {name: bed.cpu_seconds(it) for name, it in servers.items()}
        spent, out = run_timed([*command, f"https://{address}/file"], TIME_LIMIT)
        time.sleep(SETTLE)
        result = json.loads(out)
        gigabytes = result["bytes"] / 1e9
        spent = {"get": spent} | {name: bed.cpu_seconds(it) - before[name] for name, it in servers.items()}
        per_gb = {f"{name}_s_per_gb": round(seconds / gigabytes, 3) for name, seconds in spent.items()}
        return {"goodput_mbps": round(result["goodput_mbps"], 1)} | per_gb


def via(address, peer):
    """masque-go has a path with a slash at its end, and no default."""
    if peer is None:
        return f"https://{address}"
    return f"https://{address}/.well-known/masque/udp/{{target_host}}/{{target_port}}/"


def rounds(given, tandems, peers, write):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (pathlib.Path(folder) / "file").write_bytes(os.urandom(given.bytes))
        sites = [Site(one.name, one.program, folder) for one in tandems]
        sites += [Site(name, tandems[0].program, folder, bed.PEERS[name]) for name in peers]
        for site in sites:
            stack.enter_context(site)
        all_ways = dict.fromkeys(way for site in sites for way in site.ways(given.modes))
        for number in range(1, given.download_rounds + 1):
            for hops, mode in all_ways:
                for site in sites:
                    if (hops, mode) in site.ways(given.modes):
                        write(one_row(number, site, hops, mode, given.bytes))


def one_row(number, site, hops, mode, length):
    row = {"part": "downloads", "round": number, "contestant": site.name, "load_average": round(os.getloadavg()[0], 2)}
    row |= {"hops": hops, "mode": mode, "bytes": length}
    try:
        return row | site.download(hops, mode)
    except bed.Failed as failure:
        print(failure, file=sys.stderr)
        return row | {"failed": str(failure)}
