"""The cases of TCP: programs with connections through tunnels, and other implementations of
CONNECT."""

from collections.abc import Callable
from dataclasses import dataclass

from processes import Lab
from tcp import clients, curl, downloads, listeners, proxies, shell
from versions import version


@dataclass(frozen=True)
class Case:
    """A program, what it does, and the function that lets it do this and checks it."""

    project: str
    does: str
    check: Callable[[Lab], None]

    def __str__(self) -> str:
        return f"{self.project} {version(self.project)} on TCP, {self.does}"

    def run(self, lab: Lab) -> None:
        self.check(lab)


def cases(project: str, of_project: list[tuple[str, Callable[[Lab], None]]]) -> list[Case]:
    return [Case(project, does, check) for does, check in of_project]


CASES = [
    *cases("curl", curl.CASES),
    *cases("git", downloads.GIT_CASES),
    *cases("apt-get", downloads.APT_CASES),
    *cases("pip", downloads.PIP_CASES),
    *cases("ssh", shell.SSH_CASES),
    *(Case(*case) for case in (*listeners.CASES, *clients.CASES, *proxies.CASES)),
]
