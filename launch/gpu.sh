#!/usr/bin/env bash
# First contact with a GPU, in two calls of a few minutes: the most valuable steps come first, each has a time limit,
# and each result is on disk before the next step begins. A failed step does not stop the others.
#   launch/gpu.sh one|two [--programs PACK] [--out DIR] [--seconds N] [--from N] [--device cuda|cpu] [--list]
#     one         every op and whole steps against the CPU; steps of GPT-2 124M and GPT-3 1.3B against PyTorch's; a run;
#                 ops against their bounds; a profile
#     two         ranks that share the GPU, NCCL, random layouts, layers of GPT-3 6.7B, a Llama, compute-sanitizer
#     --programs  the output of gpu_pack.sh, folder or archive: nothing is installed or built
#     --out       one log per kind of step and summary.txt, at most 8 files [runs/gpu]
#     --seconds   for all steps together: a step begins only if its time limit fits into the rest [no limit]
#     --from      the number of the step to begin with, as shown in the summary [1]
#     --device    cpu tries the script itself without a GPU: tiny models, tests are only counted [cuda]
#     --list      prints the steps with their time limits and the number of tests each selects; runs nothing
# The exit code is 1 if a step failed; a filter that selects no test is a failure.
set -uo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
begin=$SECONDS

part='' programs='' out=runs/gpu seconds='' from=1 device=cuda list=0
while (($#)); do
  case $1 in
    one | two) [[ ! $part ]] || usage "found $part and $1, expected one part"; part=$1; shift; continue ;;
    --list) list=1; shift; continue ;;
    --programs | --out | --seconds | --from | --device) ;;
    *) usage "unknown argument $1" ;;
  esac
  (($# >= 2)) || usage "$1 needs a value"
  case $1 in
    --programs) programs=$(realpath -e "$2") || exit 64 ;;
    --out) out=$2 ;;
    --seconds) seconds=$2 ;;
    --from) from=$2 ;;
    --device) device=$2 ;;
  esac
  shift 2
done
[[ $device =~ ^(cpu|cuda)$ ]] || usage "--device: found \"$device\", expected cpu or cuda"
[[ $part ]] || usage "which part is missing: one or two"
[[ $seconds =~ ^([1-9][0-9]*)?$ && $from =~ ^[1-9][0-9]*$ ]] || usage "--seconds and --from: found \"$seconds\" and \"$from\", expected numbers"
memory=0  # MiB of the GPU
if [[ $device == cuda ]] && ((!list)); then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv,noheader ||
    { echo "gpu.sh: nvidia-smi finds no GPU on this machine" >&2; exit 64; }
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
fi
((list)) || mkdir -p "$out" || exit 74
out=$(realpath -m "$out") scratch=$(mktemp -d) child=''
trap 'rm -rf "$scratch"' EXIT
trap '[[ $child ]] && kill "$child"; exit 130' INT TERM  # timeout, in its own process group, forwards it to the step

# ---- the programs, and NVIDIA's libraries for them

if [[ -f $programs ]]; then  # some machines lack xz
  tar -xf "$programs" -C "$scratch" 2>/dev/null || python3 -m tarfile -e "$programs" "$scratch" || exit 74
  programs=$(echo "$scratch"/*/bin) programs=${programs%/bin}
fi
needed=(trivet kernels_test parallel_test engine_test cuda_ops_bench train_bench)
cd "$root" || exit 74
if [[ -z $programs ]] && ((!list)); then
  packages+=("${test_packages[@]}")
  install_packages && build_trivet build -DTRIVET_CUDA=ON -- "${needed[@]}" || exit 70
  programs=$root/build
fi
: "${programs:=$root/build}"
[[ -d $programs/bin ]] || { mkdir "$scratch/bin" && ln -s "$programs"/trivet "$programs"/tests/* "$scratch/bin/"; }
bin=$programs/bin
[[ -d $bin ]] || bin=$scratch/bin
tree=$root
[[ -d $programs/tests/bench ]] && tree=$programs

# Prefers the Python packages' libraries, as PyTorch uses them, to the toolkit's.
nvidia_folders() {
  python3 - <<'PYTHON' 2>/dev/null
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for root in spec.submodule_search_locations if spec else []:
    for name in ("libcudart.so.1*", "libcublasLt.so.1*", "libnccl.so.2*"):
        for path in sorted(glob.glob(f"{root}/*/lib/{name}")):
            print(path.rpartition("/")[0])
PYTHON
  local nvcc
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) && realpath "$(dirname "$nvcc")/../lib64"
}
libraries=$(nvidia_folders | awk 'NF && !seen[$0]++' | paste -sd :)
# Debian's Open MPI has its own run paths, so the programs' DT_RPATH does not apply to it.
[[ -d $programs/lib ]] && libraries+=:$programs/lib
# Only for our programs: PyTorch finds its own. Kernels are loaded eagerly: lazy loading would synchronise the GPU.
ours=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" CUDA_MODULE_LOADING=EAGER)
lost=$(for name in "${needed[@]}"; do "${ours[@]}" ldd "$bin/$name" 2>&1 | grep -E 'not found|No such file' | sed "s|^|gpu.sh: $name: |"; done)
if [[ $lost ]] && ((!list)); then
  echo "$lost" >&2
  [[ $device == cpu ]] || exit 69
fi

# ---- steps

number=0 failed=0 summary=$out/summary.txt device_factor=1
[[ $device == cuda ]] || device_factor=8  # a rehearsal tests the steps, on any machine
note() { if ((list)); then printf '%s\n' "$*"; else printf '%s\n' "$*" | tee -a "$summary"; fi; }
# step LOG NAME SECONDS COMMAND…: LOG.log gets the whole output; the summary gets the verdict and the key lines.
step() {
  local log=$out/$1.log name=$2 most=$3 code=0 start=$SECONDS verdict=passed skipped
  shift 3
  ((++number >= from)) || return 0
  if ((list)); then
    printf '%3d  %4d s  %-44s %s\n' "$number" "$most" "$name" "$(selected "$@")"
    return
  fi
  ((most *= device_factor))
  if [[ $seconds ]] && ((SECONDS - begin + most > seconds)); then
    note "$(printf '%3d  %-46s left out: %d s are left, its bound is %d' "$number" "$name" $((seconds - SECONDS + begin)) "$most")"
    failed=1
    return
  fi
  local at=0
  printf '\n== %d %s\n$ %s\n' "$number" "$name" "$*" >>"$log" && at=$(stat -c %s "$log") || verdict="FAILED: $log cannot be written"
  timeout -k 5 "$most" "$@" </dev/null >>"$log" 2>&1 &
  child=$!
  wait "$child" || code=$?
  child=''
  tail -c +$((at + 1)) "$log" >"$scratch/output"
  ((code == 0)) || verdict="FAILED with $code"
  ((code == 124 || code == 137)) && verdict="FAILED: over its $most s"
  grep -aq 'Running 0 tests' "$scratch/output" && verdict='FAILED: the filter selects no test'
  skipped=$(grep -ac '^\[  SKIPPED \] [^0-9]' "$scratch/output")
  [[ $device == cuda && $skipped != 0 ]] && grep -aq '^\[  PASSED  \] 0 tests' "$scratch/output" && verdict='FAILED: every test was skipped'
  [[ $verdict == passed ]] || failed=1
  note "$(printf '%3d  %-46s %s (%d s)' "$number" "$name" "$verdict" $((SECONDS - start)))"
  grep -aE '^result |^\[  (PASSED|FAILED|SKIPPED) |MFU .*%|rror|FAILED|evaluation at|^ *([0-9]+)/\2 ' "$scratch/output" |
    head -n "$([[ $verdict == passed ]] && echo 10 || echo 5)" |
    cut -c1-180 | sed 's/^/         /' | tee -a "$summary"
}
# The tests that a command with --gtest_filter selects.
selected() {
  local argument filter=''
  for argument; do [[ $argument == --gtest_filter=* ]] && filter=$argument; done
  [[ $filter ]] || return 0
  for argument; do
    [[ $argument == "$bin"/*_test ]] || continue
    printf '%d tests' "$("${ours[@]}" "$argument" "$filter" --gtest_list_tests 2>/dev/null | grep -c '^  ')"
  done
}
tests() {  # LOG NAME SECONDS PROGRAM FILTER [BEFORE…]: prints names, so that the log ends with a test that hangs
  local command=("${ours[@]}" "${@:6}" "$bin/$4" "--gtest_filter=$5")
  if [[ $device == cpu ]] && ((!list)); then  # there is no GPU to run them on
    [[ $(selected "${command[@]}") != '0 tests' ]] || { note "     $2: the filter selects no test"; failed=1; }
    command=(true)
  fi
  step "$1" "$2" "$3" "${command[@]}"
}
has_torch=0
python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null && has_torch=1
without() {  # a skipped step, which keeps its number
  ((++number >= from)) && note "$(printf '%3d  %-46s left out: there is no %s' "$number" "$1" "$2")"
}
torch() {
  ((has_torch || list)) || { without "torch_step $1" 'torch in Python'; return; }
  step torch "torch_step $1, micro-batch $2" 90 python3 "$tree/tests/bench/torch_step.py" --model "$1" --micro-batch "$2"
}
bench() { step train "train_bench $*" "${limit:-60}" "${ours[@]}" "$bin/train_bench" --device "$device" --model "$@"; }

b=8  # GPT-3 1.3B: 49 GiB with 8 samples, 75 with 16
((memory > 100000)) && b=16
models=("124m 32" "1.3b $b") layers=6.7b-layers llama=1.3b
[[ $device == cuda ]] || models=("tiny 2") layers=tiny llama=tiny
small=(--set batch.micro_batch_size=1 --set batch.global_batch_size=8 --set train.eval_iters=1)
awk 'BEGIN { split("tensor pipeline data gradient weight token layer step", what, " ")
  for (i = 1; i <= 40000; ++i) printf "Rank %d of %d sends its %s to rank %d.%s", i % 8, 8, what[i % 7 + 1], (i + 1) % 8, i % 50 ? " " : "\n\n" }' >"$scratch/text.txt"
trivet=("${ours[@]}" "$bin/trivet")
lazy=(env CUDA_MODULE_LOADING=LAZY)  # NVIDIA's tools instrument all loaded code; these ranks wait for no other rank
script() { printf '%q ' "$@"; echo; }  # the command as a line of a script: dependent commands form one step
prepare=$(script "${trivet[@]}" data prepare --input "$scratch/text.txt" --output "$scratch/text" --tokenizer bytes --document paragraph)
prepare="[[ -e $(printf %q "$scratch/text.bin") ]] || $prepare"
note "part $part on $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true), $(date -u +%FT%TZ), $("${ours[@]}" "$bin/trivet" --version 2>&1 | head -n 1)"

if [[ $part == one ]]; then
  if [[ $device == cuda ]] && ((!list && has_torch && from <= 7)); then  # fills PyTorch's compile cache concurrently
    (for model in "${models[@]}"; do
      # shellcheck disable=SC2086
      timeout 150 python3 "$tree/tests/bench/torch_step.py" --model ${model/ / --micro-batch } --steps 1 --warm-up 1
    done >"$out/torch_warm.log" 2>&1) &
  fi
  tests tests 'every op against its reference' 110 kernels_test '*cuda*:*Cuda*'
  tests tests 'whole steps against the CPU, one rank' 45 engine_test '*AGpuAgrees*/one*:*AGpuAgrees*/bf16:*NoNumberOfAGpu/one'
  run=(--set "data.path=$scratch/text" --set "train.run_dir=$scratch/run" --set "device.kind=$device"
    --set parallel.tensor_model_parallel_size=1 --set parallel.pipeline_model_parallel_size=1
    --set parallel.sequence_parallel=false --set optimizer.lr_warmup_iters=5 --set checkpoint.save_interval=10 --set train.eval_interval=10)
  [[ $device == cuda ]] || run+=("${small[@]}")
  {
    echo "set -ex; $prepare"
    script "${trivet[@]}" train "$tree/configs/tiny.yaml" "${run[@]}" --set train.train_iters=20
    script "${trivet[@]}" train "$tree/configs/tiny.yaml" "${run[@]}" --set train.train_iters=30 --set optimizer.override_opt_param_scheduler=true
    script "${trivet[@]}" generate "$scratch/run" --prompt 'Rank 3 of 8' --set "device.kind=$device"
  } >"$scratch/run.sh"
  step run 'train 20 steps, resume for 10, generate' 80 bash "$scratch/run.sh"
  wait
  for model in "${models[@]}"; do
    bench "${model% *}" --micro-batch "${model#* }"
    # shellcheck disable=SC2086
    torch $model
  done
  if [[ $device == cuda ]]; then
    step ops 'ops against their bounds' 60 "${ours[@]}" "$bin/cuda_ops_bench"
    limit=45 bench 124m --micro-batch 32 --cuda-graphs local
    limit=45 bench 124m --micro-batch 4 --micro-batches 8
    if command -v ncu >/dev/null || ((list)); then
      step ops 'ncu: attention, norms, Adam' 60 "${ours[@]}" "${lazy[@]}" ncu --clock-control none --launch-count 40 \
        --section SpeedOfLight --section Occupancy -k 'regex:hopper|layernorm|adamw|column_sum|cross' \
        "$bin/train_bench" --model 124m --device cuda --layers 2 --micro-batch 32 --steps 1 --warm-up 1
    else
      without ncu ncu
    fi
  fi
else
  # One process per layout: a layout that hangs costs only its own time limit.
  for layout in ring sharded_optimizer tensor_and_pipeline sharded_weights gpipe interleaved zero_bubble_recompute llama llama_bf16 qwen3 fp8 fp8_llama fp8_blocks; do
    tests ranks "ranks on one GPU against the CPU: $layout" 20 engine_test "*AGpuAgrees*/$layout" timeout -k 2 18
  done
  tests ranks 'communicators (most of NCCL takes two GPUs)' 60 parallel_test '*Cuda*:*cuda*:*Nccl*:*NCCL*:*nccl*'
  # NCCL rejects two ranks on one GPU, but identifies hosts by NCCL_HOSTID: processes with different ids use sockets.
  # No group has more than two ranks, and two terms have the same sum in any order: losses equal those of staged ranks.
  mpirun=(env "LD_LIBRARY_PATH=$programs/lib:$libraries" OPAL_PREFIX="$programs/ompi" OPAL_PKGLIBDIR="$programs/ompi/lib/openmpi"
    OPAL_PKGDATADIR="$programs/ompi/share/openmpi" OMPI_MCA_plm=isolated "$programs/ompi/bin/mpirun")
  [[ -d $programs/ompi ]] || mpirun=(mpirun)
  nccl=(nccl staged) && [[ $device == cuda ]] || nccl=(mpi thread)
  pair() {  # NAME [--set …]
    local name=$1 backend both
    both=("${trivet[@]}" train "$tree/configs/tiny.yaml" --set "device.kind=$device" --set "data.path=$scratch/text" --set train.train_iters=5
      --set parallel.tensor_model_parallel_size=1 --set parallel.pipeline_model_parallel_size=1
      --set parallel.sequence_parallel=false --set optimizer.lr_warmup_iters=1 --set train.deterministic_mode=true "${small[@]}" "${@:2}")
    {
      echo "set -ex; $prepare"
      script "${both[@]}" --set "comm.backend=${nccl[1]}" --ranks 2 --set "train.run_dir=$scratch/$name-${nccl[1]}"
      both+=(--set "comm.backend=${nccl[0]}" --set "train.run_dir=$scratch/$name-${nccl[0]}")
      # mpirun's own time limit kills the ranks too, whatever they wait for.
      script "${mpirun[@]}" --timeout $((device_factor * 25)) --oversubscribe --bind-to none -n 1 -x NCCL_HOSTID=first "${both[@]}" : \
        -n 1 -x NCCL_HOSTID=second "${both[@]}"
      for backend in "${nccl[@]}"; do
        echo "grep -o '\"loss\":[^,]*' '$scratch/$name-$backend/metrics.jsonl' >'$scratch/$name.$backend'"
      done
      echo "test \$(wc -l <'$scratch/$name.${nccl[0]}') == 5; cmp '$scratch/$name.${nccl[0]}' '$scratch/$name.${nccl[1]}'; echo result: five equal losses"
    } >"$scratch/$name.sh"
    step nccl "$name: ${nccl[1]}, ${nccl[0]}, five equal losses" 50 bash "$scratch/$name.sh"
  }
  pair data --set parallel.data_parallel_sharding_strategy=optim --set overlap.overlap_grad_reduce=true \
    --set overlap.overlap_param_gather=true
  pair tensor --set parallel.tensor_model_parallel_size=2 --set parallel.sequence_parallel=true
  pair pipeline --set parallel.pipeline_model_parallel_size=2
  bench $layers --micro-batch $((b / 2))
  torch $layers $((b / 2))
  bench $llama --micro-batch "$b" --blocks llama
  [[ $device == cpu ]] || step ops 'linear layers in FP8 against bf16' 45 "${ours[@]}" "$bin/cuda_ops_bench" fp8
  if command -v compute-sanitizer >/dev/null || ((list)); then
    tests sanitize 'memcheck, whole steps' 70 engine_test '*AGpuAgrees*/bf16' "${lazy[@]}" compute-sanitizer --error-exitcode 1 --tool memcheck
  else
    without 'memcheck, whole steps' compute-sanitizer
  fi
  tests ranks 'random layouts' 60 engine_test '*RandomLayout.IsTheSameOnGpus/?'
fi
((from <= number)) || usage "--from: found $from, but part $part has $number steps"
((list)) && exit

# ---- Trivet against PyTorch, at the end of the output

cat "$out"/train.log "$out"/torch.log 2>/dev/null | awk '
  function value(key, i, pair) {
    for (i = 2; i <= NF; ++i) { split($i, pair, "="); if (pair[1] == key) return pair[2] }
  }
  /^result / { n++; model[n] = value("model"); who[n] = value("who"); rate[n] = value("tokens_per_s"); ms[n] = value("ms")
    full[n] = value("mfu_full"); causal[n] = value("mfu_causal"); tokens[n] = value("tokens")
    if (who[n] == "trivet") ours[model[n], tokens[n]] = rate[n] }
  END { if (n) printf "%-12s %7s %-15s %10s %12s %9s %11s %9s\n", "model", "tokens", "who", "ms", "tokens/s", "MFU full", "MFU causal", "Trivet x"
    for (i = 1; i <= n; ++i) {
      ratio = who[i] != "trivet" && ours[model[i], tokens[i]] ? sprintf("%.3f", ours[model[i], tokens[i]] / rate[i]) : ""
      printf "%-12s %7d %-15s %10.2f %12d %8.1f%% %10.1f%% %9s\n", model[i], tokens[i], who[i], ms[i], rate[i], full[i], causal[i], ratio } }' |
  tee -a "$summary"
note "$((SECONDS - begin)) s in all"
exit "$failed"
