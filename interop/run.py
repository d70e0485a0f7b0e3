"""Runs the matrix. Every case has its own processes and prints one line."""

import shutil
import signal
import sys
import time
from pathlib import Path

import files
from cases import CASES, Case
from processes import Lab

LOGS = files.CACHE / "logs"


def main(words: list[str]) -> int:
    """Runs the cases whose line contains all the words, and returns the exit code."""
    only_list = "--list" in words
    words = [word for word in words if word != "--list"]
    cases = [case for case in CASES if all(word in str(case) for word in words)]
    if only_list or not cases:
        print(*cases, sep="\n")
        return 0 if cases else 2
    files.make()
    shutil.rmtree(LOGS, ignore_errors=True)
    passed = sum(run(case, LOGS / f"{number:02}") for number, case in enumerate(cases, 1))
    failed = len(cases) - passed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def run(case: Case, logs: Path) -> bool:
    """Prints the case's line and returns whether it passed."""
    start = time.monotonic()
    failure = None
    try:
        with Lab(logs) as lab:
            case.run(lab)
    except Exception as error:  # the other cases run in any case
        failure = f"{type(error).__name__}: {error}; logs in {logs}"
    verdict = "FAILED" if failure else "ok"
    print(f"{verdict:6} {time.monotonic() - start:5.1f} s  {case}", flush=True)
    if failure:
        print(f"       {failure}", flush=True)
    return not failure


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends the case's processes
    sys.exit(main(sys.argv[1:]))
