#!/usr/bin/env bash
# Attacks the built program: kills its runs, breaks its inputs, takes away disk, memory and permissions, and runs it for
# a long time; exits with 1 if a promise of docs/faults.md does not hold. Builds nothing; needs Python 3, and mpirun for
# MPI ranks. Prints a table in Markdown.
#   tests/attack/run.sh [--minutes N] [--seed S] [--jobs N] [--trivet PROGRAM] [--only KIND[:CASE[-LAST]]] [--keep DIR]
#     --minutes   attacks for N minutes, and trains 100,000 steps; without it, the short version that ctest runs
#     --seed      of the random draws [1]; the moment of a kill also depends on the machine
#     --only      one kind of attack (kills, inputs, limits, endurance), or some of its cases, as named by a failure
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/attack.py" --trivet "$here/../../build/trivet" "$@"
