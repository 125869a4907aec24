#!/usr/bin/env bash
# launch/mlperf.sh on a text written by the test: two runs of tiny.yaml to a target that they soon reach, with MPIRUN if
# given; their summary; the linter on the package; and arguments that must be refused.
#   run.sh PROGRAM CHECKOUT [MPIRUN]
set -euo pipefail
export TRIVET=$1
checkout=$2 ranks=(--ranks 2)
[[ -z ${3-} ]] || ranks=(--launcher "$3 --oversubscribe --bind-to none -n 2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir data
"$TRIVET" data prepare --input "$checkout/docs/architecture.md" --document paragraph --tokenizer bpe --vocab-size 512 --output data/gcide >prepare.log 2>&1
echo '{"system_name": "laptop"}' >system.json
run() {
  "$checkout/launch/mlperf.sh" "$checkout/configs/mlperf/tiny.yaml" --out out --system-desc system.json \
    --set mlperf.target=6 --set mlperf.eval_interval_samples=16 --set batch.global_batch_size=8 --set batch.micro_batch_size=4 --set train.eval_samples=8 \
    --set device.peak_tflops=1 --set device.threads_per_rank=1 "$@" 2>&1
}
fail() { echo "$1"; cat out.log; exit 1; }
run --runs 1 --seed 3 "${ranks[@]}" >out.log || fail "the first run"
run --runs 2 "${ranks[@]}" >out.log || fail "the second run"
grep -q "run 1 of 2, seed 4" out.log || fail "it does not go on with the second run"
[[ $(grep -c success out.log) == 2 ]] || fail "expected two runs that converged"
for run in 0 1; do  # the seed of the weights, and that of the samples' order
  for section in train data; do
    [[ $(sed -n "/^$section:/,/^[a-z]*:\$/s/^  seed: //p" "out/runs/$run/config.resolved.yaml") == $((3 + run)) ]] ||
      fail "run $run: $section.seed is not $((3 + run))"
  done
done
for file in out/result_{0,1}.txt out/results/laptop/tiny/result_{0,1}.txt out/systems/laptop.json out/summary.svg; do
  [[ -s $file ]] || fail "$file is missing"
done
"$TRIVET" mlperf lint out/results >out.log || true  # the rules define no benchmark with that name
grep -q "tiny" out.log || fail "the linter"
"$TRIVET" mlperf lint out >out.log || true
grep -q "^2 logs: " out.log || fail "the linter does not read each log once"
for refused in "--runs 0" "--seed 9" "--set mlperf.target=7" "--set train.seed=9" "--seed x" "--system-desc nothing" "--typo"; do
  # shellcheck disable=SC2086
  ! run "${ranks[@]}" $refused >out.log || fail "$refused was taken"
done
mv out/result_0.txt out/result_2.txt
! "$TRIVET" mlperf summary out >out.log 2>&1 || fail "a gap was taken"
grep -q "result_0.txt" out.log || fail "the gap is not named"
