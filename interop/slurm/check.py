"""Runs a sweep under a Slurm of its own, and validates manifests. Each check prints one line."""

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import checks
import kubernetes_validate
import yaml
from checks import Failure

TANDEM = os.environ["TANDEM"]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PARTS = 4
PLAN = "mode = ['mft', 'mdt', 'rmdt']\nsize = ['20kB', '40kB']\nloss = ['0%', '5%']\nseeds = '1..3'\n"
CONFIGURATION = """
ClusterName=tandem
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def output(*command, cwd: Path | None = None) -> str:
    """Runs a program to its end, and returns its standard output."""
    command = [str(word) for word in command]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr[-400:]}")
    return result.stdout


@contextmanager
def slurm():
    """A Slurm with this machine as its only node, until the context is left. Gives its folder."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for made in ("state", "spool"):
            (folder / made).mkdir()
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, cpus=os.cpu_count()))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {"key-file": "munge.key", "socket": "munge.socket", "log-file": "munge.log"}
        files |= {"pid-file": "munge.pid", "seed-file": "munge.seed"}
        # munged wants folders that only root can write to, which those for temporary files are not.
        munged = ["munged", "--foreground", "--force", *(f"--{flag}={folder / file}" for flag, file in files.items())]
        for command in (munged, ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", "localhost"]):
            log = stack.enter_context((folder / f"{command[0]}.log").open("w"))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(end, process)
            time.sleep(1)
        deadline = time.monotonic() + 30
        while "idle" not in output("sinfo", "--noheader", "--format=%T"):
            if time.monotonic() > deadline:
                raise Failure(f"the node is not ready: {(folder / 'slurmd.log').read_text()[-400:]}")
            time.sleep(0.2)
        yield folder


def end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def a_sweep_as_an_array_of_jobs_is_the_sweep_of_one_machine() -> None:
    with slurm() as folder:
        work = folder / "work"
        work.mkdir()
        (work / "plan.toml").write_text(PLAN)
        array = f"--array=0-{PARTS - 1}"
        # The second time, all runs are there already.
        for _ in range(2):
            output("sbatch", "--wait", array, DEPLOY / "slurm-sweep", "plan.toml", cwd=work)
        parts = sorted(work.glob("plan.part-*.jsonl"))
        if len(parts) != PARTS:
            raise Failure(f"files of parts: {parts}")
        lines = sum(len(part.read_text().splitlines()) for part in parts)
        merged = output(TANDEM, "lab", "sweep", "plan.toml", "--merge", *parts, cwd=work)
        if len((work / "plan.jsonl").read_text().splitlines()) != lines:
            raise Failure(f"the parts have {lines} runs, and others were run again")
        whole = output(TANDEM, "lab", "sweep", "plan.toml", "--out", "whole.jsonl", cwd=work)
        if merged != whole:
            raise Failure(f"another table: {merged} instead of {whole}")
        print(f"       {lines} runs in {PARTS} jobs")


def the_manifests_for_kubernetes_are_valid() -> None:
    for file in sorted(DEPLOY.glob("kubernetes*.yaml")):
        for resource in yaml.safe_load_all(file.read_text()):
            version = kubernetes_validate.latest_version()
            kubernetes_validate.validate(resource, version, strict=True)


CHECKS = [a_sweep_as_an_array_of_jobs_is_the_sweep_of_one_machine, the_manifests_for_kubernetes_are_valid]


if __name__ == "__main__":
    checks.main(CHECKS)
