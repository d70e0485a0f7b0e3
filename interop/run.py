"""Runs cases. Every case has its own processes and prints one line."""

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import files
from cases import CASES
from chains.cases import CASES as CHAIN_CASES
from installed.cases import CASES as INSTALLED_CASES
from processes import Lab
from tcp.cases import CASES as TCP_CASES

LOGS = files.OWN / "logs"


class Runnable(Protocol):
    """A case. Its text is its line."""

    def run(self, lab: Lab) -> str | None:
        """Runs the case. Returns what it measured, if anything."""


def main(cases: Sequence[Runnable], words: list[str]) -> int:
    """Runs those of the cases whose line contains all the words, and returns the exit code."""
    only_list = "--list" in words
    words = [word for word in words if word != "--list"]
    cases = [case for case in cases if all(word in str(case) for word in words)]
    if only_list or not cases:
        print(*cases, sep="\n")
        return 0 if cases else 2
    files.make()
    shutil.rmtree(LOGS, ignore_errors=True)
    passed = sum(run(case, LOGS / f"{number:02}") for number, case in enumerate(cases, 1))
    failed = len(cases) - passed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def run(case: Runnable, logs: Path) -> bool:
    """Prints the case's line and what it measured, and returns whether it passed."""
    start = time.monotonic()
    measured = failure = None
    try:
        with Lab(logs) as lab:
            measured = case.run(lab)
    except Exception as error:  # the other cases run in any case
        failure = f"{type(error).__name__}: {error}; logs in {logs}"
    verdict = "FAILED" if failure else "ok"
    print(f"{verdict:6} {time.monotonic() - start:5.1f} s  {case}", flush=True)
    if details := failure or measured:
        print(f"       {details}", flush=True)
    return not failure


def end_processes_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends the case's processes


if __name__ == "__main__":
    end_processes_on_sigterm()
    sys.exit(main([*CASES, *CHAIN_CASES, *TCP_CASES, *INSTALLED_CASES], sys.argv[1:]))
