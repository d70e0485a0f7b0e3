"""Runs the cases: `python -m pep.run [WORD ...]`"""

import sys

import run
from pep.cases import CASES

run.end_processes_on_sigterm()
sys.exit(run.main(CASES, sys.argv[1:]))
