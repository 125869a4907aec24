#!/usr/bin/env bash
# Trains a small GPT on a real English text, the GCIDE dictionary, on tensor-, pipeline- and data-parallel ranks of this
# machine for about three minutes, and generates text meanwhile and at the end. Installs what it needs and builds; later
# runs go straight to training.
#   launch/demo.sh [--minutes M] [ARGUMENT OF trivet train…]      e.g. --set train.train_iters=100
# TRIVET is the program [build/trivet, built here].
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
minutes=3
if [[ ${1-} == --minutes ]]; then
  [[ ${2-} =~ ^[0-9]*\.?[0-9]+$ ]] || { sed -n '5s/^# *//p' "${BASH_SOURCE[0]}" >&2; exit 64; }
  minutes=$2
  shift 2
fi
part() { printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

trivet=${TRIVET-}
if [[ -z $trivet ]]; then
  part "packages: what it takes to build, and the dictionary"
  packages+=(dict-gcide)
  install_packages
  part "the program: the first build takes about 3 minutes on two cores"
  # A build folder that is there stays as it was configured.
  options=(-DCMAKE_UNITY_BUILD=ON -DTRIVET_TESTS=OFF -DTRIVET_CUDA=OFF -DTRIVET_CPU_ISAS=native)
  [[ -f build/build.ninja && -f build/.configured ]] && read -ra options <build/.configured
  [[ ${options[*]} == default ]] && options=()
  build_trivet build "${options[@]}" -- trivet
  trivet=build/trivet
fi

corpus=/usr/share/dictd/gcide.dict.dz
if [[ ! -f data/gcide.json ]]; then
  part "the data: $corpus"
  mkdir -p data
  "$trivet" data prepare --input "$corpus" --document entry --tokenizer sentencepiece --vocab-size 4096 \
    --output data/gcide
fi

# As many steps as take the time on this machine, unless they are given: after the first ones, which are slower.
run=(train configs/tiny.yaml --ranks 8 --set train.run_dir=runs/demo --set checkpoint.async_save=true)
rm -rf runs/demo  # of the last demo
if [[ "$*" != *train.train_iters=* ]]; then
  part "the length of a step on this machine"
  measured=runs/demo.step
  rm -rf "$measured"
  "$trivet" "${run[@]}" "$@" --set "train.run_dir=$measured" --set train.train_iters=8 >/dev/null
  steps=$(sed -n 's/.*"step":\([0-9]*\),.*"step_seconds":\([0-9.e-]*\).*/\1 \2/p' "$measured/metrics.jsonl" |
    awk -v minutes="$minutes" '$1 > 2 { n++; s += $2 }
      END { steps = int(60 * minutes / (s / n) / 20) * 20; print steps < 60 ? 60 : steps, 1000 * s / n }')
  rm -rf "$measured"
  part "a step takes ${steps#* } ms: ${steps% *} steps for about $minutes minutes of training"
  steps=${steps% *}
  set -- --set "train.train_iters=$steps" --set "train.eval_interval=$((steps / 4))" \
    --set "checkpoint.save_interval=$((steps / 4))" "$@"
fi
part "training on eight ranks; the first text after a quarter of the steps"
"$trivet" "${run[@]}" --generate "A house is" "$@"
loss=$(sed -n 's/.*"validation_loss":\([0-9.]*\).*/\1/p' runs/demo/metrics.jsonl | tail -1)
part "done: validation loss ${loss:-unknown}, checkpoints and metrics in runs/demo. More text:"
echo "    $trivet generate runs/demo --prompt \"A house is\""
