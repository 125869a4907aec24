#!/usr/bin/env bash
# On a machine with a GPU: the tests that need one, the benchmarks beside PyTorch's, and a short real run. A step that
# fails ends no other; the summary at the end tells which passed, and the exit code is 1 if one did not.
#   launch/gpu.sh [--parts LIST] [--programs DIR] [--out DIR] [--limit S] [--total S] [--models LIST] [--recipes LIST]
#     --parts      of tests,sanitize,ops,train,torch,run,nccl [tests,ops,train,torch,run,nccl]
#                    tests     operations, communicators and layouts on the GPU        sanitize  some under
#                    ops       each operation's share of its limit                               compute-sanitizer
#                    train     whole steps (train_bench)     torch  the same in PyTorch, and the ratios
#                    run       data, training, resuming, two ranks on the GPU, and generating text
#                    nccl      two NCCL ranks on the GPU, as two hosts, against staged ones
#     --programs   a folder that gpu_pack.sh made: nothing is installed or built
#     --out        a log of each part, and summary.txt [runs/gpu]
#     --limit      seconds of each step at most, instead of its own limit
#     --total      seconds of all steps together: the last ones are cut or left out, and the summary is still written
#     --models     of train and torch [124m,1.3b,6.7b-layers]
#     --recipes    of torch: autocast, bf16 (tests/bench/torch_step.py) [autocast]
#     --device     cpu tries the script itself where there is no GPU [cuda]
set -uo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

parts=tests,ops,train,torch,run,nccl programs='' out=runs/gpu limit='' total='' models='' recipes=autocast device=cuda
while (($#)); do
  [[ $1 =~ ^--(parts|programs|out|limit|total|models|recipes|device)$ ]] || usage "unknown argument $1"
  (($# >= 2)) || usage "$1 needs a value"
  case $1 in
    --parts) parts=$2 ;;
    --programs) programs=$(realpath "$2") || exit 64 ;;
    --out) out=$2 ;;
    --limit) limit=$2 ;;
    --total) total=$2 ;;
    --models) models=$2 ;;
    --recipes) recipes=$2 ;;
    --device) device=$2 ;;
  esac
  shift 2
done
[[ $parts =~ ^((tests|sanitize|ops|train|torch|run|nccl)(,|$))+$ ]] || usage "--parts: unknown part in \"$parts\""
[[ $device =~ ^(cpu|cuda)$ ]] || usage "--device: found \"$device\", expected cpu or cuda"
[[ $limit$total =~ ^[0-9]*$ ]] || usage "--limit and --total: found \"$limit$total\", expected seconds"
if [[ $device == cuda ]]; then
  : "${models:=124m,1.3b,6.7b-layers}"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
    { echo "gpu.sh: nvidia-smi finds no GPU on this machine" >&2; exit 64; }
else
  : "${models:=tiny}"
fi
mkdir -p "$out" && out=$(realpath "$out") || exit 74
cd "$root" || exit 74

# ---- programs, and NVIDIA's libraries for them

needed=(trivet kernels_test parallel_test engine_test cuda_ops_bench train_bench)
if [[ -z $programs ]]; then
  packages+=("${test_packages[@]}")
  install_packages && build_trivet build -DTRIVET_CUDA=ON -- "${needed[@]}" || exit 70
fi
program() {
  if [[ -n $programs ]]; then echo "$programs/bin/$1"
  elif [[ $1 == trivet ]]; then echo "$root/build/trivet"
  else echo "$root/build/tests/$1"; fi
}

# Those of Python's packages first, as PyTorch uses them; then the toolkit's. Only for our programs: PyTorch finds its own.
nvidia_folders() {
  python3 - <<'PYTHON' 2>/dev/null
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for root in spec.submodule_search_locations if spec else []:
    for name in ("libcudart.so.1*", "libcublasLt.so.1*", "libnccl.so.2*", "libcudnn.so.9*"):
        for path in sorted(glob.glob(f"{root}/*/lib/{name}")):
            print(path.rpartition("/")[0])
PYTHON
  local nvcc
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) && realpath "$(dirname "$nvcc")/../lib64"
}
libraries=$(nvidia_folders | awk '!seen[$0]++' | paste -sd :)
others=${LD_LIBRARY_PATH-}
our_libraries=$libraries${others:+:$others}
search=$our_libraries  # of the next step
# of the next step, too; empty: CUDA loads a kernel at its first launch. Ranks that are threads share the GPU's context,
# which may come to a stop meanwhile, also for the rank that waits for the one that launches: the tests load all of them at the
# start, which takes seconds for those of NVIDIA's libraries. (`trivet` sees to that by itself.)
loading=
for name in "${needed[@]}"; do
  lost=$(LD_LIBRARY_PATH=$our_libraries ldd "$(program "$name")" 2>&1 | grep -E 'not found|No such file') &&
    echo "gpu.sh: $name: $lost" >&2
done

# ---- steps

summary=() failed=0
# step PART NAME LIMIT LINES COMMAND…: appends to the part's log, and shows the last LINES of a step that passed.
step() {
  local part=$1 name=$2 most=${limit:-$3} lines=$4 log=$out/$1.log code=0 start=$SECONDS verdict=passed tests
  shift 4
  if [[ -n $total ]]; then
    local -r left=$((total - SECONDS))
    if ((left < 5)); then
      failed=1
      summary+=("$(printf '%-34s    0 s  not run: no time is left' "$part: $name")")
      return 1
    fi
    ((most <= left)) || most=$left
  fi
  printf '\n== %s\n$ %s\n' "$name" "$*" | tee -a "$log"
  local -r from=$(stat -c %s "$log")
  timeout -k 5 "$most" env LD_LIBRARY_PATH="$search" ${loading:+CUDA_MODULE_LOADING=$loading} "$@" \
    </dev/null >>"$log" 2>&1 || code=$?
  ((code == 0)) || verdict="FAILED with $code"
  ((code == 124 || code == 137)) && verdict="FAILED: over its $most s"
  ((code == 0)) || { failed=1; lines=40; }
  tail -c +$((from + 1)) "$log" | tail -n "$lines"
  tests=$(tail -c +$((from + 1)) "$log" | sed -n 's/^\[  \(PASSED\|SKIPPED\|FAILED\) *\] \([0-9]* tests\{0,1\}\).*/\2 \L\1/p' | paste -sd ',' | sed 's/,/, /g')
  # Tests that all skipped themselves have found no GPU.
  [[ $device == cuda && $tests == '0 tests passed'* ]] && failed=1 verdict='FAILED: nothing ran'
  summary+=("$(printf '%-34s %4d s  %s%s' "$part: $name" $((SECONDS - start)) "$verdict" "${tests:+ ($tests)}")")
  return "$code"
}
wants() { [[ ,$parts, == *,$1,* ]]; }
for part in ${parts//,/ }; do : >"$out/$part.log"; done

if wants tests; then
  loading=EAGER
  step tests kernels_test 200 4 "$(program kernels_test)" --gtest_brief=1 --gtest_filter='*cuda*:*Cuda*'
  step tests cudnn 200 4 "$(program kernels_test)" --gtest_brief=1 --gtest_filter='*cudnn*:*Cudnn*'
  step tests parallel_test 120 4 "$(program parallel_test)" --gtest_brief=1 \
    --gtest_filter='*Cuda*:*cuda*:*Nccl*:*NCCL*:*nccl*'
  step tests engine_test 200 4 "$(program engine_test)" --gtest_brief=1 --gtest_filter='*OnADevice*:*AStepAhead*:*OfAGpu*'
  step tests random_layouts 120 4 "$(program engine_test)" --gtest_brief=1 --gtest_filter='*RandomLayout.IsTheSameOnGpus*'
  loading=
fi

if wants ops; then
  step ops cuda_ops_bench 150 80 "$(program cuda_ops_bench)"
fi

for model in ${models//,/ }; do
  if wants train; then
    step train "train_bench $model" 120 45 "$(program train_bench)" --model "$model" --device "$device"
    if [[ $model == 124m && $device == cuda ]]; then
      # CUDA graphs: where micro-batches fill the GPU, and where the host is late
      step train '124m, graphs' 120 12 "$(program train_bench)" --model 124m --cuda-graphs local
      for graphs in none local; do
        step train "124m, 8 x 2 samples, graphs $graphs" 90 12 "$(program train_bench)" --model 124m \
          --micro-batch 2 --micro-batches 8 --cuda-graphs "$graphs"
      done
    fi
  fi
  if wants torch; then
    for recipe in ${recipes//,/ }; do
      search=$others
      step torch "torch_step $model $recipe" 240 4 python3 tests/bench/torch_step.py --model "$model" --recipe "$recipe"
      search=$our_libraries
    done
  fi
done

if wants run || wants nccl; then
  runs=$(mktemp -d)
  trap 'rm -rf "$runs"' EXIT
  awk 'BEGIN { split("tensor pipeline data gradient weight token layer step", what, " ")
    for (i = 1; i <= 40000; ++i) printf "Rank %d of %d sends its %s to rank %d.%s", i % 8, 8, what[i % 7 + 1], (i + 1) % 8, i % 50 ? " " : "\n\n" }' >"$runs/text.txt"
  trivet=$(program trivet)
  step run 'data prepare' 30 3 "$trivet" data prepare --input "$runs/text.txt" --output "$runs/text" --tokenizer bytes \
    --document paragraph
fi

if wants run; then
  one=(--set "data.path=$runs/text" --set "train.run_dir=$runs/run" --set "device.kind=$device"
    --set parallel.tensor_model_parallel_size=1 --set parallel.pipeline_model_parallel_size=1
    --set parallel.sequence_parallel=false --set optimizer.lr_warmup_iters=5 --set checkpoint.save_interval=10 --set train.eval_interval=10)
  shared=(--ranks 2 --set "device.kind=$device" --set "data.path=$runs/text" --set "train.run_dir=$runs/shared"
    --set parallel.pipeline_model_parallel_size=1 --set optimizer.lr_warmup_iters=5 --set train.train_iters=10)
  step run 'train, 20 steps' 90 45 "$trivet" train configs/tiny.yaml "${one[@]}" --set train.train_iters=20
  step run 'resumed, 10 more' 60 16 "$trivet" train configs/tiny.yaml "${one[@]}" --set train.train_iters=30 \
    --set optimizer.override_opt_param_scheduler=true
  step run 'two ranks, tensor parallel' 90 14 "$trivet" train configs/tiny.yaml "${shared[@]}"
  step run 'generate' 60 5 "$trivet" generate "$runs/run" --prompt 'Rank 3 of 8' --set "device.kind=$device"
  if [[ $device == cuda ]]; then
    step run 'GPT-2 124M, 20 steps' 120 30 "$trivet" train configs/gpt2_124m.yaml "${one[@]}" --set train.train_iters=20 \
      --set batch.global_batch_size=64 --set batch.micro_batch_size=32 --set "train.run_dir=$runs/gpt2" \
      --set checkpoint.save_interval=0 --set checkpoint.keep_last=0 --set checkpoint.async_save=false
  fi
fi

# NCCL refuses two ranks on one GPU, but tells hosts apart by NCCL_HOSTID: with one of its own for each process it takes
# sockets between them. No group has more than two ranks, whose sum is the same in every order: so are the losses.
if wants nccl; then
  mpirun=(mpirun)
  [[ -n $programs ]] && mpirun=(env LD_LIBRARY_PATH="$programs/lib:$search" OPAL_PREFIX="$programs/ompi"
    OPAL_PKGLIBDIR="$programs/ompi/lib/openmpi" OPAL_PKGDATADIR="$programs/ompi/share/openmpi" OMPI_MCA_plm=isolated
    "$programs/ompi/bin/mpirun")
  mpirun+=(--oversubscribe --bind-to none)
  losses() {  # to a file, if there is one of each step
    grep -o '"loss":[^,]*' "$1/metrics.jsonl" >"$1/losses"
    (($(wc -l <"$1/losses") == 5)) || rm "$1/losses"  # then there is nothing to compare, which fails
  }
  two() {  # NAME [--set …]: five steps of two staged ranks, and of two NCCL ranks
    local -r name=$1 both=(train configs/tiny.yaml --set "device.kind=$device" --set "data.path=$runs/text" --set train.train_iters=5
      --set parallel.tensor_model_parallel_size=1 --set parallel.pipeline_model_parallel_size=1
      --set parallel.sequence_parallel=false --set optimizer.lr_warmup_iters=1 --set train.deterministic_mode=true "${@:2}")
    local first=(--set comm.backend=staged) second=(--set comm.backend=nccl)
    [[ $device == cpu ]] && first=(--set comm.backend=thread) second=(--set comm.backend=mpi)
    step nccl "$name, staged" 60 3 "$trivet" "${both[@]}" "${first[@]}" --ranks 2 --set "train.run_dir=$runs/$name-staged" &&
      step nccl "$name, NCCL" 90 3 "${mpirun[@]}" -n 1 -x NCCL_HOSTID=first "$trivet" "${both[@]}" "${second[@]}" \
        --set "train.run_dir=$runs/$name-nccl" : -n 1 -x NCCL_HOSTID=second "$trivet" "${both[@]}" "${second[@]}" \
        --set "train.run_dir=$runs/$name-nccl" &&
      losses "$runs/$name-staged" && losses "$runs/$name-nccl" &&
      step nccl "$name, the same losses" 5 3 diff "$runs/$name-staged/losses" "$runs/$name-nccl/losses"
  }
  two data --set parallel.data_parallel_sharding_strategy=optim --set overlap.overlap_grad_reduce=true \
    --set overlap.overlap_param_gather=true
  two tensor --set parallel.tensor_model_parallel_size=2 --set parallel.sequence_parallel=true
  two pipeline --set parallel.pipeline_model_parallel_size=2
fi

if wants sanitize; then
  loading=EAGER
  for tool in memcheck racecheck synccheck; do
    step sanitize "$tool" 180 5 compute-sanitizer --error-exitcode 1 --tool "$tool" "$(program kernels_test)" \
      --gtest_brief=1 --gtest_filter='*LayerNorm*cuda*:*Norm*Sums*cuda*:*ColumnSum*cuda*:*Equal*cuda*:*CrossEntropy*cuda*:*StepCheck*cuda*:*Attention*MatchesTheDefinition/cuda*'
  done
  step sanitize 'memcheck, whole steps' 240 5 compute-sanitizer --error-exitcode 1 --tool memcheck \
    "$(program engine_test)" --gtest_brief=1 --gtest_filter='*AGpuAgrees*/bf16'
fi

# ---- what came of it

{
  if grep -qs '^result ' "$out/train.log" "$out/torch.log"; then
    printf '\n%-12s %7s %-15s %10s %12s %9s %11s %8s %9s\n' model tokens who 'ms per step' tokens/s 'MFU full' 'MFU causal' idle 'Trivet x'
    cat "$out/train.log" "$out/torch.log" 2>/dev/null | awk '
      function value(key, i, pair) {
        for (i = 2; i <= NF; ++i) { split($i, pair, "="); if (pair[1] == key) return pair[2] }
        return ""
      }
      /^result / { n++; model[n] = value("model"); who[n] = value("who"); rate[n] = value("tokens_per_s"); ms[n] = value("ms")
        full[n] = value("mfu_full"); causal[n] = value("mfu_causal"); idle[n] = value("idle"); tokens[n] = value("tokens")
        if (who[n] == "trivet") ours[model[n], tokens[n]] = rate[n] }
      END { for (i = 1; i <= n; ++i) {
          ratio = who[i] != "trivet" && ours[model[i], tokens[i]] ? sprintf("%.3f", ours[model[i], tokens[i]] / rate[i]) : ""
          printf "%-12s %7d %-15s %10.2f %12d %8.1f%% %10.1f%% %8s %9s\n", model[i], tokens[i], who[i], ms[i], rate[i], full[i], causal[i], idle[i] == "" ? "" : idle[i] "%", ratio } }' |
      sort -s -k1,1 -k2,2nr
    echo "Trivet x: Trivet's tokens/s over those of PyTorch, or of Trivet with CUDA graphs; same model and batch"
  fi
  echo
  printf '%s\n' "${summary[@]}"
} | tee "$out/summary.txt"
exit "$failed"
