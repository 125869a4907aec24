#!/usr/bin/env bash
# Trains a small GPT on real English text, the GCIDE dictionary, on tensor-, pipeline- and data-parallel ranks of this
# machine for about three minutes, and generates text during training and at the end. Installs what it needs and builds;
# later runs go straight to training. The run is in runs/demo: if it was interrupted, the same arguments or none resume
# it; any other run there is kept as runs/demo.1, runs/demo.2, …
#   launch/demo.sh [--minutes M] [OPTION OF trivet train…]      e.g. --set train.train_iters=100
# M: minutes of training [3]; at least 60 steps.
# TRIVET is the program [build/trivet, built here].
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"

minutes=3 prompt="A house is" given=() train_options=() sets=()
while (($#)); do
  case $1 in
    --minutes | --set | --generate | --generate-tokens | --temperature | --top-k | --top-p | --seed | --inject)
      (($# >= 2)) || usage "$1 needs a value" ;;
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    *) usage "unknown argument $1" ;;
  esac
  case $1 in
    --minutes)
      [[ $2 =~ ^[0-9]*\.?[0-9]+$ && $2 == *[1-9]* ]] || usage "--minutes: found \"$2\", expected a number above 0"
      minutes=$2
      ;;
    --set)
      [[ $2 != train.run_dir=* ]] || usage "--set: train.run_dir is runs/demo"
      sets+=("$1" "$2")
      ;;
    --generate) prompt=$2 ;;
    *) train_options+=("$1" "$2") ;;
  esac
  given+=("$1" "$2")
  shift 2
done
asked=${given[*]@Q}
part() { printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

trivet=${TRIVET-}
if [[ -z $trivet ]]; then
  part "packages: what it takes to build, and the dictionary"
  packages+=(dict-gcide)
  install_packages
  [[ -x build/trivet ]] || part "the program: the first build takes about 3 minutes on two cores"
  # An existing build folder keeps its configuration.
  options=(-DCMAKE_UNITY_BUILD=ON -DTRIVET_TESTS=OFF -DTRIVET_CUDA=OFF -DTRIVET_CPU_ISAS=native)
  [[ -f build/build.ninja && -f build/.configured ]] && read -ra options <<<"$(<build/.configured)"
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

# True if runs/demo is the requested run, and the same command can finish it.
record=runs/demo/demo.arguments  # the arguments given; then all, including those computed for this machine
is_unfinished() {
  [[ -f $record && ( -z $asked || $asked == "$(head -n 1 "$record")" ) ]] &&
    ! grep -Eqs '"exit_code": *(0|64|65|93)\b' runs/demo/outcome.json
}
set_aside() {
  local number=1
  if command -v flock >/dev/null && ! flock --nonblock runs/demo true; then
    echo "demo.sh: another program trains in runs/demo: wait until it ends, or stop it" >&2
    exit 69
  fi
  while [[ -e runs/demo.$number ]]; do number=$((number + 1)); done
  mv runs/demo "runs/demo.$number"
  part "the last demo's run is kept as runs/demo.$number"
}

run=(train configs/tiny.yaml --ranks 8 --set train.run_dir=runs/demo --set checkpoint.async_save=true)
if is_unfinished; then
  part "runs/demo is not finished: it goes on"
  eval "set -- $(tail -n 1 "$record")"
else
  "$trivet" config configs/tiny.yaml --ranks 8 "${sets[@]}" >/dev/null
  set -- "${sets[@]}" --generate "$prompt" "${train_options[@]}"
  # Unless given, the number of steps is chosen to fit the time on this machine; the slower first steps are not timed.
  if [[ "$*" != *train.train_iters=* ]]; then
    part "the length of a step on this machine"
    measured=$(mktemp -d)
    trap 'rm -rf "$measured"' EXIT
    "$trivet" "${run[@]}" "${sets[@]}" --set "train.run_dir=$measured" --set train.train_iters=8 >/dev/null
    read -r steps length total < <(
      sed -n 's/.*"step":\([0-9]*\),.*"step_seconds":\([0-9.e-]*\).*/\1 \2/p' "$measured/metrics.jsonl" |
        awk -v minutes="$minutes" '$1 > 2 { n++; s += $2 }
          END { steps = int(60 * minutes / (s / n) / 20) * 20; if (steps < 60) steps = 60
                printf "%d %.1f %.1f\n", steps, 1000 * s / n, steps * s / n / 60 }')
    rm -rf "$measured"
    least=''
    ((steps > 60)) || least=' (the least)'
    part "a step takes $length ms: $steps steps$least for about $total minutes"
    set -- --set "train.train_iters=$steps" --set "train.eval_interval=$((steps / 4))" \
      --set "checkpoint.save_interval=$((steps / 4))" "$@"
  fi
  [[ ! -e runs/demo ]] || set_aside
  mkdir -p runs/demo
  printf '%s\n' "$asked" "${*@Q}" >"$record"
  part "training on eight ranks; the first text after a quarter of the steps"
fi
code=0
"$trivet" "${run[@]}" "$@" || code=$?
if ((code != 0)); then
  asked=''
  if is_unfinished; then part "runs/demo is not finished; this resumes it: launch/demo.sh"; fi
  exit "$code"
fi
loss=$(sed -n 's/.*"validation_loss":\([0-9.]*\).*/\1/p' runs/demo/metrics.jsonl | tail -1)
part "done: validation loss $(LC_ALL=C printf %.4f "${loss:-nan}"), checkpoints in runs/demo. More text:"
echo "    $trivet generate runs/demo --prompt ${prompt@Q}"
