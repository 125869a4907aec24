#!/usr/bin/env bash
# One row of the fault table, with real processes: trains on three MPI ranks with an injected fault, and checks the exit
# code, the output, outcome.json, and that no process is left. The run must detect the fault itself: its own timeout is
# longer than mpirun's.
#   fault_row.sh TRIVET MPIRUN EXIT STATUS RANK TEXT [--split] TRAIN-ARGUMENT…
#     EXIT, STATUS, RANK: as in outcome.json.   TEXT: a regular expression.   --split: only rank 2 gets the arguments
set -uo pipefail
trivet=$1 mpirun=$2 code=$3 status=$4 rank=$5 text=$6
shift 6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((i = 0; i < 3000; ++i)); do echo "$((i * i % 97)) words of line $i"; done >"$folder/corpus.txt"
"$trivet" data prepare --input "$folder/corpus.txt" --output "$folder/corpus" --tokenizer bytes >"$folder/out" 2>&1 || {
  cat "$folder/out"
  exit 1
}
cat >"$folder/run.yaml" <<YAML
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, seq_length: 16}
batch: {global_batch_size: 12}
data: {path: $folder/corpus, split: "100,0,0"}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
comm: {timeout_s: 3600}
train: {train_iters: 5, run_dir: $folder/run}
YAML
train=("$trivet" train "$folder/run.yaml")
if [[ ${1-} == --split ]]; then
  shift
  $mpirun -n 2 "${train[@]}" : -n 1 "${train[@]}" "$@" >"$folder/out" 2>&1
else
  $mpirun -n 3 "${train[@]}" "$@" >"$folder/out" 2>&1
fi
found=$?

problem() {
  echo "$1"
  cat "$folder/out" "$folder/run/outcome.json" 2>/dev/null
  exit 1
}
((found == code)) || problem "exit code $found, expected $code"
grep -qE -- "$text" "$folder/out" || problem "no \"$text\""
# The launcher's children may take a moment to exit.
for ((i = 0; i < 600; ++i)); do
  left=$(pgrep -f "$folder/run.yaml") || break
  sleep 0.1
done
[[ -z $left ]] || problem "processes are left: $left"
if [[ $status != - ]]; then
  grep -q "\"status\": \"$status\"" "$folder/run/outcome.json" || problem "outcome.json: expected $status"
  grep -q "\"exit_code\": $code," "$folder/run/outcome.json" || problem "outcome.json: expected exit_code $code"
  grep -q "\"root_cause_rank\": $rank" "$folder/run/outcome.json" || problem "outcome.json: expected rank $rank"
fi
