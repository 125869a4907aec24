#!/usr/bin/env bash
# Attacks the built program: kills its runs, breaks its inputs, takes away disk, memory and permissions, and runs it for
# long; ends with 1 where something that docs/faults.md promises does not hold. Builds nothing; needs Python 3, and
# mpirun for MPI ranks. Prints a table in Markdown.
#   tests/attack/run.sh [--minutes N] [--seed S] [--jobs N] [--trivet PROGRAM] [--only KIND[:CASE[-LAST]]] [--keep DIR]
#     --minutes   attacks for so long, and trains 100,000 steps; without it, the short version that ctest runs
#     --seed      of what is drawn [1]; the moment of a kill depends on the machine, too
#     --only      one kind of attack (kills, inputs, limits, endurance), or cases of it, as a failure names them
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/attack.py" --trivet "$here/../../build/trivet" "$@"
