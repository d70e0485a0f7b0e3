"""Runs the cases: `python -m choosing.run [WORD ...]`"""

import sys

import run
from choosing.cases import CASES

run.end_processes_on_sigterm()
sys.exit(run.main(CASES, sys.argv[1:]))
