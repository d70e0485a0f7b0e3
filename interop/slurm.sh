#!/usr/bin/env bash
# Runs a sweep of the lab as an array of jobs under a real Slurm with one node, on loopback, and validates the manifests for
# Kubernetes. It needs root, and first installs Slurm.
#   interop/slurm.sh                uses a new build
#   TANDEM=FILE interop/slurm.sh    uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

test "$(id -u)" = 0 || { echo "slurm.sh needs root" >&2; exit 1; }
need python3
install_packages slurmctld=slurmctld slurmd=slurmd sbatch=slurm-client munged=munge
install_python_packages python3 "$cache/kubernetes" slurm/requirements.txt
build_tandem

exec timeout --signal TERM 300 "$cache/kubernetes/bin/python" slurm/check.py
