"""Runs the cases: `python -m chains.run [WORD ...]`"""

import sys

import run
from chains.cases import CASES

run.end_processes_on_sigterm()
sys.exit(run.main(CASES, sys.argv[1:]))
