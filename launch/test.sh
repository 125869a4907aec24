#!/usr/bin/env bash
# Runs all tests: installs what is missing, builds, and starts ctest. Then the same CPU tests under AddressSanitizer with
# UndefinedBehaviorSanitizer, and under ThreadSanitizer.
#   launch/test.sh [--quick] [CTEST ARGUMENT…]      --quick leaves the sanitizers out
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
sanitize=1
if [[ ${1:-} == --quick ]]; then sanitize=0; shift; fi
install_packages

run_tests() {  # DIR CTEST-ARGUMENT…
  local dir=$1
  shift
  (cd "$dir" && ctest --output-on-failure -j "$(nproc)" "$@")
}

if ((sanitize)); then
  build_trivet build-asan -DTRIVET_SANITIZE=address,undefined -DTRIVET_CUDA=OFF
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 run_tests build-asan "$@"
  build_trivet build-tsan -DTRIVET_SANITIZE=thread -DTRIVET_CUDA=OFF
  TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp halt_on_error=1" run_tests build-tsan "$@"
fi
build_trivet build
run_tests build "$@"
