#!/usr/bin/env bash
# trivet preflight on hosts with real, rate-limited links (launch/netlab): a healthy lab passes; a slow link and a
# throttled host are found and told apart; with two hosts, neither is blamed. Traces of hosts with different clocks
# agree. Run it by hand, on a quiet machine: preflight also finds other load on the cores. Takes two minutes.
#   netlab_preflight.sh TRIVET
set -uo pipefail
trivet=$(realpath "$1") here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=$here/../../launch/netlab/netlab.sh
folder=$(mktemp -d) passed=0 failed=0
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
for ((i = 0; i < 500; ++i)); do echo "$((i * i % 97)) words of line $i"; done >corpus.txt
"$trivet" data prepare --input corpus.txt --output corpus --tokenizer bytes >/dev/null || exit 1
cat >run.yaml <<YAML
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
batch: {global_batch_size: 12}
data: {path: corpus, split: "100,0,0"}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
train: {train_iters: 4, run_dir: run}
YAML
# NAME EXIT-CODE TEXT LAB-ARGUMENT…: TEXT is a regular expression that must match, or, after a "!", must not.
trial() {
  local name=$1 code=$2 text=$3 found
  shift 3
  "$lab" --gbps 0.2 "$@" -- "$trivet" preflight run.yaml >out 2>err
  found=$?
  if ((found == code)) && if [[ $text == !* ]]; then ! grep -qE -- "${text#!}" out; else grep -qE -- "$text" out; fi; then
    echo "passed: $name" && passed=$((passed + 1))
  else
    echo "FAILED: $name: exit code $found, expected $code and $text" && cat out && failed=$((failed + 1))
  fi
}
trial 'a healthy lab' 0 'nothing is slow' --ranks 4
trial 'a slow link' 69 '^slow: link of rank 1 on [^ ]* and rank 3 on [^ ]*: network' --ranks 4 --slow-link 1-3:0.05
trial 'a slow link is no slow rank' 69 '!^slow: rank .*network' --ranks 4 --slow-link 1-3:0.05
trial 'a slow link of three' 69 '^slow: link of rank 0 on [^ ]* and rank 2 on [^ ]*: network' --ranks 3 --slow-link 0-2:0.05
trial 'a throttled host' 69 '^slow: rank 2 on ' --ranks 4 --throttle 2:30
trial 'a throttled host is no slow link' 69 '!^slow: link' --ranks 4 --throttle 2:30
trial 'of two hosts neither' 0 'nothing is slow' --ranks 2 --throttle 1:30
"$lab" --ranks 2 --gbps 1 --clock 1:1000 -- "$trivet" train run.yaml --set train.trace=true >out 2>&1
if python3 "$here/traces_agree.py" run/trace.json; then passed=$((passed + 1)); else cat out && failed=$((failed + 1)); fi
echo "$passed passed, $failed failed"
((failed == 0))
