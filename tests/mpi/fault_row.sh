#!/usr/bin/env bash
# One row of the fault table over real processes: trains on three MPI ranks with a fault, and looks at the exit code, the
# text, the time, outcome.json and the processes that are left.
#   fault_row.sh TRIVET MPIRUN SECONDS EXIT STATUS RANK TEXT [--split] TRAIN-ARGUMENT…
#     STATUS, RANK: of outcome.json.   TEXT: a regular expression.   --split: rank 2 gets the arguments, the others not
set -uo pipefail
trivet=$1 mpirun=$2 seconds=$3 code=$4 status=$5 rank=$6 text=$7
shift 7
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
device: {threads_per_rank: 1, peak_tflops: 1}
comm: {timeout_s: 30}
train: {train_iters: 5, run_dir: $folder/run}
YAML
train=("$trivet" train "$folder/run.yaml")
begin=$(date +%s%N)
if [[ ${1-} == --split ]]; then
  shift
  $mpirun -n 2 "${train[@]}" : -n 1 "${train[@]}" "$@" >"$folder/out" 2>&1
else
  $mpirun -n 3 "${train[@]}" "$@" >"$folder/out" 2>&1
fi
found=$? took=$((($(date +%s%N) - begin) / 1000000))

problem() {
  echo "$1"
  cat "$folder/out" "$folder/run/outcome.json" 2>/dev/null
  exit 1
}
((found == code)) || problem "exit code $found, expected $code"
((took <= seconds * 1000)) || problem "took $took ms, expected at most $seconds s"
grep -qE -- "$text" "$folder/out" || problem "no \"$text\""
# The launcher's children may be on their way out for a moment.
for ((i = 0; i < 50; ++i)); do
  left=$(pgrep -f "$folder/run.yaml") || break
  sleep 0.1
done
[[ -z $left ]] || problem "processes are left: $left"
if [[ $status != - ]]; then
  grep -q "\"status\": \"$status\"" "$folder/run/outcome.json" || problem "outcome.json: expected $status"
  grep -q "\"root_cause_rank\": $rank" "$folder/run/outcome.json" || problem "outcome.json: expected rank $rank"
fi
echo "$took ms"
