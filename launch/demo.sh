#!/usr/bin/env bash
# Trains a small GPT on a real English text, the GCIDE dictionary, on tensor- and data-parallel ranks of this machine,
# and lets it write. Installs what it needs, builds, and can be run again: later runs go straight to training.
#   launch/demo.sh [ARGUMENT OF trivet train…]      e.g. --set train.train_iters=100
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
install_packages
build_trivet build -- trivet

corpus=/usr/share/dictd/gcide.dict.dz
if [[ ! -f data/gcide.json ]]; then
  mkdir -p data
  build/trivet data prepare --input "$corpus" --document entry --tokenizer sentencepiece --vocab-size 4096 \
    --output data/gcide
fi
rm -rf runs/demo  # of the last demo
build/trivet train configs/tiny.yaml --ranks 8 --set train.run_dir=runs/demo --set checkpoint.save_interval=200 \
  --set checkpoint.async_save=true --generate "A house is" "$@"
