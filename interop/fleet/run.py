"""Runs the cases: `python -m fleet.run [WORD ...]`"""

import sys

import run
from fleet.cases import CASES

run.end_processes_on_sigterm()
sys.exit(run.main(CASES, sys.argv[1:]))
