"""Checks that are functions. Each prints one line, which is its name."""

import sys
from collections.abc import Callable, Sequence


class Failure(Exception):
    """A check failed; the text is the reason."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failure(otherwise)


def main(checks: Sequence[Callable[[], None]], left: Callable[[], str | None] = lambda: None) -> None:
    """Runs the checks and ends the program. `left` removes what a check has left, and says what that was."""
    passed = sum(run(check, left) for check in checks)
    failed = len(checks) - passed
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def run(check: Callable[[], None], left: Callable[[], str | None]) -> bool:
    """Prints the check's line and returns whether it passed."""
    failure = None
    try:
        check()
    except Exception as error:  # the other checks run in any case
        failure = f"{type(error).__name__}: {error}"
    failure = failure or left()
    print(f"{'FAILED' if failure else 'ok':6} {check.__name__.replace('_', ' ')}", flush=True)
    if failure:
        print(f"       {failure}", flush=True)
    return not failure
