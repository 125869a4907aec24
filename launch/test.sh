#!/usr/bin/env bash
# Runs all tests: installs what is missing, builds, and starts ctest; then the fuzz targets for a few seconds; then all
# tests under AddressSanitizer with UndefinedBehaviorSanitizer.
#   launch/test.sh [--quick | --tsan] [CTEST ARGUMENT…]
#     --quick   without sanitizers      --tsan   under ThreadSanitizer too: also what CUDA kernels lack in barriers
# Under AddressSanitizer a test of ctest's is a share of a program's cases: GTEST_FILTER=… chooses among them, -R does not.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
asan=1 tsan=0
case ${1:-} in
  --quick) asan=0; shift ;;
  --tsan) tsan=1; shift ;;
esac
install_packages

run_tests() {  # DIR CTEST-ARGUMENT…
  local dir=$1
  shift
  (cd "$dir" && ctest --output-on-failure -j "$(nproc)" "$@")
}

build_trivet build
run_tests build "$@"
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
