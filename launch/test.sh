#!/usr/bin/env bash
# Runs all tests: installs what is missing, builds, and starts ctest; then the fuzz targets for a few seconds; then all
# tests under AddressSanitizer with UndefinedBehaviorSanitizer.
#   launch/test.sh [--unity] [--quick | --tsan] [CTEST ARGUMENT…]
#     --unity   several sources are compiled as one, in a folder of their own: quicker from nothing, as CI begins
#     --quick   without sanitizers      --tsan   under ThreadSanitizer too: also what CUDA kernels lack in barriers
# Under AddressSanitizer a test of ctest's is a share of a program's cases: GTEST_FILTER=… chooses among them, -R does not.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
asan=1 tsan=0 plain=(build)
while [[ ${1-} == --unity || ${1-} == --quick || ${1-} == --tsan ]]; do
  case $1 in
    --unity) plain=(build-unity -DCMAKE_UNITY_BUILD=ON) ;;
    --quick) asan=0 ;;
    --tsan) tsan=1 ;;
  esac
  shift
done
install_packages

run_tests() {  # DIR CTEST-ARGUMENT…
  local dir=$1
  shift
  (cd "$dir" && ctest --output-on-failure -j "$(nproc)" "$@")
}

build_trivet "${plain[@]}"
run_tests "${plain[0]}" "$@"
launch/fuzz.sh -runs=3000  # from the committed inputs on
if ((asan)); then
  build_trivet build-asan -DTRIVET_SANITIZE=address,undefined
  # Open MPI keeps memory until the process ends: leaks are looked for in the tests of one process.
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 run_tests build-asan -E '^mpi_' "$@"
fi
if ((tsan)); then
  build_trivet build-tsan -DTRIVET_SANITIZE=thread
  TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp halt_on_error=1" run_tests build-tsan -E '^mpi_' "$@"
fi
