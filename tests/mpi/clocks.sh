#!/usr/bin/env bash
# Ranks whose clocks differ by 5000 s, as two hosts' may, write one trace: an all-reduce ends at the same time on both.
# Needs root and time namespaces; exits with 77 without them.
#   clocks.sh TRIVET MPIRUN
set -euo pipefail
trivet=$1 mpirun=$2
unshare --time --monotonic 5000 true 2>/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((i = 0; i < 500; ++i)); do echo "$((i * i % 97)) words of line $i"; done >"$folder/corpus.txt"
"$trivet" data prepare --input "$folder/corpus.txt" --output "$folder/corpus" --tokenizer bytes >"$folder/out" 2>&1
cat >"$folder/run.yaml" <<YAML
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, seq_length: 16}
batch: {global_batch_size: 4}
data: {path: $folder/corpus, split: "100,0,0"}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
train: {train_iters: 4, run_dir: $folder/run, trace: true}
YAML
train=("$trivet" train "$folder/run.yaml")
$mpirun -n 1 "${train[@]}" : -n 1 unshare --time --monotonic 5000 "${train[@]}" >"$folder/out" 2>&1 || {
  cat "$folder/out"
  exit 1
}
python3 "$(dirname "${BASH_SOURCE[0]}")/traces_agree.py" "$folder/run/trace.json"
