#!/usr/bin/env bash
# Runs a benchmark of configs/mlperf several times with different seeds, as a submission to MLPerf Training requires,
# and summarizes the runs. If there is no program yet, installs what it needs and builds it.
#   launch/mlperf.sh CONFIG --out DIR [--runs N] [--seed S] [--ranks N | --launcher "mpirun -n 8"] [--start CHECKPOINT]
#                    [--system-desc FILE] [--against-reference FILE] [--set SECTION.KEY=VALUE …]
# DIR gets results/SYSTEM/BENCHMARK/result_0.txt …, links to them, systems/SYSTEM.json from FILE of --system-desc,
# summary.svg, and one folder per run in runs/. --runs: total number [1]. S: seed of the first run; later runs count up
# from it [random]. CHECKPOINT: for benchmarks that start from one. FILE of --against-reference: how many samples
# reference runs took to reach the target; these runs are tested against them.
# Started again with the same settings, it continues with the missing runs. TRIVET is the program [build/trivet,
# built here].
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

config="" out="" runs=1 seed="" launcher=() start="" description="" summary=() train=()
while (($#)); do
  case $1 in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --out | --runs | --seed | --ranks | --launcher | --start | --system-desc | --against-reference | --set)
      (($# >= 2)) || usage "$1 needs a value" ;;
    -*) usage "unknown argument $1" ;;
    *)
      [[ -z $config ]] || usage "unknown argument $1"
      config=$1
      shift
      continue
      ;;
  esac
  case $1 in
    --out) out=$2 ;;
    --runs) runs=$2 ;;
    --seed) seed=$2 ;;
    --ranks) train+=(--ranks "$2") ;;
    --launcher) read -ra launcher <<<"$2" ;;
    --start) start=$2 ;;
    --system-desc) description=$2 ;;
    --against-reference) summary=(--against-reference "$2") ;;
    --set)
      case $2 in
        train.run_dir=* | train.seed=* | data.seed=*) usage "--set $2: is set by the script; expected --out or --seed" ;;
      esac
      train+=(--set "$2")
      ;;
  esac
  shift 2
done
[[ -n $config ]] || usage "CONFIG is missing"
[[ -n $out ]] || usage "--out is missing"
[[ $runs =~ ^[1-9][0-9]*$ ]] || usage "--runs: found \"$runs\", expected a number above 0"
[[ -z $seed || $seed =~ ^(0|[1-9][0-9]{0,8})$ ]] || usage "--seed: found \"$seed\", expected a number below 1e9"
for file in "$config" "$start" "$description" "${summary[@]:1}"; do
  [[ -z $file || -e $file ]] || usage "$file does not exist"
done

benchmark=$(sed -n 's/^ *benchmark: *"\{0,1\}\([a-z0-9_]*\).*/\1/p' "$config")
[[ -n $benchmark && $benchmark != none ]] || usage "$config has no line \"benchmark: NAME\" in a section mlperf"

mkdir -p "$out/runs"
exec 9>"$out/runs/lock"  # the runs inherit the lock
flock -n 9 || usage "another call, or a run that it left, writes to $out"
# Runs of one result differ only in their seeds; the first seed is drawn once.
settings=$(cat "$config" && printf '%s\n' "${launcher[@]}" "${train[@]}" "$start")
[[ -f $out/runs/settings ]] || { echo "$settings" >"$out/runs/settings.part" && mv "$out/runs/settings"{.part,}; }
[[ $(<"$out/runs/settings") == "$settings" ]] || usage "$out has runs with other settings: diff $out/runs/settings"
[[ -s $out/runs/seed ]] || echo "${seed:-$((RANDOM * 32768 + RANDOM))}" >"$out/runs/seed"
[[ -z $seed || $seed == $(<"$out/runs/seed") ]] || usage "--seed: the runs in $out count up from $(<"$out/runs/seed")"
seed=$(<"$out/runs/seed")

trivet=${TRIVET-$root/build/trivet}
if [[ -z ${TRIVET-} && ! -x $trivet ]]; then
  install_packages
  (cd "$root" && build_trivet build -DCMAKE_UNITY_BUILD=ON -DTRIVET_TESTS=OFF -DTRIVET_CUDA=OFF -- trivet)
fi
# The benchmarks for two cores use the demo's text.
if [[ $benchmark == tiny* && ! -f data/gcide.json ]]; then
  packages+=(dict-gcide)
  install_packages
  mkdir -p data
  "$trivet" data prepare --input /usr/share/dictd/gcide.dict.dz --document entry --tokenizer sentencepiece \
    --vocab-size 4096 --output data/gcide
fi
# The small GPT-3 starts from the same model, trained for 100 steps.
if [[ $benchmark == tiny_gpt3 && -z $start ]]; then
  start=$out/start/checkpoints/step-00000100
  if [[ ! -d $start ]]; then
    awk '/^[a-z]/ {drop = /^mlperf:/} !drop' "$config" >"$out/start.yaml"
    others=()  # keys of the model and its layout, not of the benchmark
    for ((i = 0; i < ${#train[@]}; i += 2)); do
      [[ ${train[i + 1]} == mlperf.* ]] || others+=("${train[@]:i:2}")
    done
    "${launcher[@]}" "$trivet" train "$out/start.yaml" "${others[@]}" --set "train.run_dir=$out/start" \
      --set train.train_iters=100 --set train.eval_interval=0 --set train.full_validation=false \
      --set checkpoint.save_interval=100
  fi
fi

[[ -z $start ]] || train+=(--resume "$start")
value_of() { sed -n "s/.*\"key\":\"$1\",\"value\":\"\([^\"]*\)\".*/\1/p" "$2" | head -n 1; }  # KEY LOG
for ((i = 0; i < runs; ++i)); do
  result=$out/result_$i.txt
  [[ ! -f $result ]] || continue
  if [[ ! -f $out/runs/$i/ended ]]; then
    rm -rf "$out/runs/$i"
    echo "run $i of $runs, seed $((seed + i))"
    "${launcher[@]}" "$trivet" train "$config" "${train[@]}" --set "train.run_dir=$out/runs/$i" \
      --set "train.seed=$((seed + i))" --set "data.seed=$((seed + i))" || {
      code=$?
      ((code == 93)) || exit "$code"  # a diverged run counts as one that missed the target
    }
    touch "$out/runs/$i/ended"
  fi
  log=$out/runs/$i/mlperf.log
  system=$(value_of submission_platform "$log" | tr -c '[:alnum:]_\n-' _)
  folder=results/$system/$benchmark
  mkdir -p "$out/$folder"
  cp "$log" "$out/$folder/result_$i.txt"
  ln -sfn "$folder/result_$i.txt" "$result"
done
if [[ -n $description ]]; then
  mkdir -p "$out/systems"
  for folder in "$out"/results/*; do cp "$description" "$out/systems/${folder##*/}.json"; done
fi
"$trivet" mlperf summary "$out" "${summary[@]}" --svg "$out/summary.svg"
