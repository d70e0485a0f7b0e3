"""The cases of installed programs."""

from installed import apple, programs
from tcp.cases import Case


class Installed(Case):
    """A program with a login."""

    def __str__(self) -> str:
        return super().__str__().replace(" on TCP, ", " with a login, ", 1)


CASES = [Installed(*case) for case in (*apple.CASES, *programs.CASES)]
