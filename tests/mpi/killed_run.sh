#!/usr/bin/env bash
# One of four MPI ranks is killed in the middle of a step. The supervisor restarts the run, which ends with the losses
# and the checkpoint of an uninterrupted run. Also: under a launcher, ranks are processes even if the configuration
# selects a communication backend for GPUs.
#   killed_run.sh TRIVET SUPERVISE TEXT -- MPIRUN ARGUMENT…
set -euo pipefail
trivet=$1 supervise=$2 text=$3
shift 4
mpirun=("$@")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "killed_run: $*" >&2; tail -n 20 "$dir"/*.log >&2; exit 1; }

"$trivet" data prepare --input "$text" --document paragraph --tokenizer bytes --output "$dir/text" >/dev/null
cat >"$dir/run.yaml" <<'EOF'
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, hidden_dropout: 0.1}
parallel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, data_parallel_sharding_strategy: optim}
overlap: {overlap_grad_reduce: true, overlap_param_gather: true}
batch: {micro_batch_size: 2, global_batch_size: 8}
precision: {dtype: bf16}
train: {train_iters: 12}
checkpoint: {save_interval: 4}
device: {kind: cpu, peak_tflops: 1, threads_per_rank: 1}
EOF
run() { "${mpirun[@]}" -n 4 "$trivet" train "$dir/run.yaml" --set data.path="$dir/text" --set train.run_dir="$dir/$1" "${@:2}"; }
losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$dir/$1/metrics.jsonl"; }

attempt() {  # the first attempt is killed
  local fault=()
  [[ -e $dir/killed ]] || fault=(--inject kill:2:10:backward)
  touch "$dir/killed"
  run supervised "${fault[@]}"
}
if [[ ${KILLED_RUN_ATTEMPT-} ]]; then dir=$KILLED_RUN_ATTEMPT; trap - EXIT; attempt; exit; fi

# The killed run saves synchronously, so that step 8 is on disk by then; the other run saves asynchronously.
run straight --set checkpoint.async_save=true >"$dir/straight.log" 2>&1 || fail "the run that nobody kills ended with $?"
KILLED_RUN_ATTEMPT=$dir "$supervise" --run-dir "$dir/supervised" --delay 0 -- "$0" "$trivet" "$supervise" "$text" -- \
  "${mpirun[@]}" >"$dir/supervised.log" 2>&1 || fail "the supervised run ended with $?"

grep -q 'rank 2 on .* has died' "$dir/supervised.log" || fail "nobody says who has died"
grep -q 'resumed from .*step-00000008 after step 8 of 12' "$dir/supervised.log" || fail "not resumed from step 8"
[[ $(losses straight | wc -l) == 12 ]] || fail "12 steps were to be done"
# Step 9 ran twice, with the same loss both times.
[[ $(losses supervised | sort -n -u) == "$(losses straight)" ]] || fail "other losses"
for shard in "$dir"/straight/checkpoints/step-00000012/*.safetensors; do
  cmp "$shard" "${shard/straight/supervised}" || fail "other weights"
done

# A signal that reaches every rank twice, because mpirun and a scheduler both forward it, makes the run save.
"${mpirun[@]}" -n 4 "$trivet" train "$dir/run.yaml" --set data.path="$dir/text" --set train.run_dir="$dir/stopped" \
  --set train.train_iters=1000000 >"$dir/stopped.log" 2>&1 &
pid=$!
until grep -q '"loss"' "$dir/stopped/metrics.jsonl" 2>/dev/null; do
  kill -0 "$pid" || fail "the run that is to be stopped has ended"
  sleep 0.05
done
ranks=$(pgrep -P "$pid" -f "$dir/stopped" | tr '\n' ' ')
# shellcheck disable=SC2086
kill -TERM $ranks && { kill -TERM $ranks 2>/dev/null || true; }
code=0
wait "$pid" || code=$?
grep -q '"exit_code": 75' "$dir/stopped/outcome.json" || fail "stopped: no exit code 75 in outcome.json, $code of mpirun"
[[ -s $dir/stopped/checkpoints/latest ]] || fail "the run that was stopped is not saved"
[[ $(grep -c 'the run ends after this step' "$dir/stopped.log") == 1 ]] || fail "not one rank reports the signal"

# A signal to mpirun: it stops reading its ranks' output before it forwards the signal, and gives them two seconds.
for signal in TERM INT TERM; do
  rm -rf "$dir/asked"
  "${mpirun[@]}" -n 2 "$trivet" train "$dir/run.yaml" --set data.path="$dir/text" --set train.run_dir="$dir/asked" \
    --set train.train_iters=1000000 --set checkpoint.save_interval=1000000 --set model.hidden_size=16 \
    --set model.seq_length=16 >"$dir/asked.log" 2>&1 &
  pid=$!
  until grep -q '"step":200,' "$dir/asked/metrics.jsonl" 2>/dev/null; do
    kill -0 "$pid" || fail "the run that is to be asked has ended"
    sleep 0.05
  done
  kill "-$signal" "$pid"
  wait "$pid" && fail "$signal to mpirun: it ended with 0"
  last=$(losses asked | tail -n 1 | cut -d ' ' -f 1)
  [[ $(cat "$dir/asked/checkpoints/latest") == "$(printf 'step-%08d' "$last")" ]] || fail "$signal to mpirun: step $last is not saved"
done

for backend in nccl staged; do
  run "$backend" --set comm.backend="$backend" --set device.kind=cpu >"$dir/$backend.log" 2>&1 && fail "$backend ran on CPUs"
  grep -q "rank 3. comm.backend: found $backend, but this run computes on CPUs" "$dir/$backend.log" || fail "$backend: another error"
done
