#!/usr/bin/env bash
# Builds the page of docs/play by Emscripten (Debian's package emscripten), a minute's work.
#   docs/play/build.sh [DIR]       DIR: build-play in the checkout
# DIR then has index.html and play.js, which contains the WebAssembly: open index.html, or serve the folder,
#   python3 -m http.server --directory build-play
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=${1-build-play}
mkdir -p "$dir"
include=$(mktemp -d)
trap 'rm -r "$include"' EXIT
ln -s /usr/include/fmt "$include"  # fmt alone: the rest of /usr/include belongs to this system
export NODE_PATH=/usr/share/nodejs  # Debian's modules, for a Node.js that is not Debian's
em++ -std=c++20 -O2 -fexceptions -DFMT_HEADER_ONLY -Wall -Wextra -Werror -I . -I docs/play -isystem "$include" \
  docs/play/play.cc parallel/pipeline/{check,schedule,schedule_text,schedules,simulate,timeline}.cc base/svg.cc \
  tools/draw/{render_svg,render_text,schedule_table}.cc \
  --bind -sSINGLE_FILE -sMODULARIZE -sEXPORT_NAME=load_trivet -sALLOW_MEMORY_GROWTH -sENVIRONMENT=web -sFILESYSTEM=0 \
  -o "$dir/play.js"
cp docs/play/index.html "$dir"
