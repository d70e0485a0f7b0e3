"""Runs the matrix: every case with processes of its own, one line for each."""

import shutil
import sys
import time

import files
from cases import CASES
from processes import Failure, Lab


def main(words: list[str]) -> int:
    """Returns the exit code."""
    only_list = words == ["--list"]
    cases = [case for case in CASES if only_list or all(word in str(case) for word in words)]
    if only_list or not cases:
        print(*cases, sep="\n")
        return 0 if cases else 2
    files.make()
    passed = failed = 0
    for number, case in enumerate(cases, 1):
        logs = files.CACHE / "logs" / f"{number:02}"
        shutil.rmtree(logs, ignore_errors=True)
        start = time.monotonic()
        try:
            with Lab(logs) as lab:
                case.run(lab)
            verdict, reason = "ok", ""
            passed += 1
        except Failure as failure:
            verdict, reason = "FAILED", f": {failure}; logs in {logs}"
            failed += 1
        print(f"{verdict:6} {time.monotonic() - start:5.1f} s  {case}{reason}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
