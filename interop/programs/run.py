"""Runs the cases: `python -m programs.run [WORD ...]`"""

import sys

import run
from programs.cases import CASES

run.end_processes_on_sigterm()
sys.exit(run.main(CASES, sys.argv[1:]))
