#!/usr/bin/env bash
# Draws the pictures of docs/schedules.md and docs/context.md with the program itself.
#   docs/draw.sh [TRIVET [FOLDER]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trivet=${1:-build/trivet} folder=${2:-docs/img}
draw() { "$trivet" schedule "${@:2}" --svg "$folder/schedule-$1.svg" >/dev/null; }

draw 1f1b --kind gpipe,1f1b
draw interleaved --kind interleaved,interleaved-bfs
draw zero-bubble --kind zb-h1,zb-h2
draw v --kind zb-v,dualpipe-v
draw latency --kind 1f1b,1f1b-eager,zb-h1 --microbatches 12 --latency 0.5 --transfers
draw head --kind 1f1b,zb-h1 --head 0.5,0.5,0.5
"$trivet" schedule context --ranks 4 --svg "$folder/schedule-context.svg" >/dev/null
"$trivet" schedule context --ranks 4 --documents 900,3200,400,1700,1100,892 --svg "$folder/schedule-documents.svg" >/dev/null
