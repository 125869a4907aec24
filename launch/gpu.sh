#!/usr/bin/env bash
# On a machine with a GPU: builds, runs the tests that need one, then the benchmark of the operations.
#   launch/gpu.sh [--sanitize]       --sanitize   some of the tests under compute-sanitizer, too
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
sanitize=0
case ${1:-} in
  --sanitize) sanitize=1 ;;
  '') ;;
  *) sed -n '2,3s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
  { echo "gpu.sh: nvidia-smi finds no GPU on this machine" >&2; exit 64; }
install_packages
build_trivet build -DTRIVET_CUDA=ON -- kernels_test parallel_test cuda_ops_bench

build/tests/kernels_test --gtest_filter='*cuda*:*Cuda*'
# Ranks that are threads share the GPU's context, which may come to a stop while a kernel is loaded at its first launch:
# also for the rank that waits for the one that launches.
CUDA_MODULE_LOADING=EAGER build/tests/parallel_test --gtest_filter='*OnCuda*:*Nccl*'
if ((sanitize)); then
  for tool in memcheck racecheck synccheck; do
    echo "compute-sanitizer $tool"
    compute-sanitizer --error-exitcode 1 --tool "$tool" build/tests/kernels_test \
      --gtest_filter='*LayerNorm*cuda*:*Norm*Sums*cuda*:*ColumnSum*cuda*:*Equal*cuda*:*Attention*MatchesTheDefinition/cuda*'
  done
fi
build/tests/cuda_ops_bench
