#!/usr/bin/env bash
# Runs all tests: installs what is missing, builds, and starts ctest; then the fuzz targets for a few seconds; then all
# tests under AddressSanitizer with UndefinedBehaviorSanitizer, and CUDA emulated. Prints where the time went.
#   launch/test.sh [--unity] [--quick | --tsan] [CTEST ARGUMENT…]
#     --unity   several sources are compiled as one, all but the kernels with -Og, in a folder of their own, and a few
#               processes share the cases: quicker from nothing, as CI begins; AddressSanitizer then does not look for
#               uses after a scope has ended, which takes a quarter of its compile time
#     --quick   without sanitizers      --tsan   under ThreadSanitizer too: also what CUDA kernels lack in barriers
# Under AddressSanitizer, and with --unity, a test of ctest's is a share of a program's cases: GTEST_FILTER=… chooses
# among them, -R does not.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
asan=1 tsan=0 plain=(build) scopes=()
while (($#)); do
  case $1 in
    --unity)  # with -Og GCC compiles in two thirds of the time, and in six sevenths where it collects no garbage
      heap="--param ggc-min-heapsize=1000000"
      plain=(build-unity -DCMAKE_UNITY_BUILD=ON -DTRIVET_SHARED_PROCESSES=ON -DTRIVET_LEVEL=-Og "-DCMAKE_CXX_FLAGS=$heap")
      scopes=("-DCMAKE_CXX_FLAGS=$heap -fno-sanitize-address-use-after-scope") ;;
    --quick) asan=0 ;;
    --tsan) tsan=1 ;;
    *) break ;;
  esac
  shift
done
# ctest itself passes over what it does not know.
for argument; do
  [[ $argument =~ ^--?[A-Za-z-]+ ]] && known=$(ctest --help 2>/dev/null) || continue
  [[ $known =~ [\ ,]${BASH_REMATCH[0]}[\ ,=[] ]] || usage "unknown argument $argument"
done
packages+=("${test_packages[@]}")
install_packages

run_tests() {  # DIR CTEST-ARGUMENT…
  local dir=$1
  shift
  # One more than cores: tests of ranks and of faults wait a quarter of their time.
  (cd "$dir" && ctest --output-on-failure -j "$(($(nproc) + 1))" "$@")
  echo "$dir: the slowest tests"
  sort -k3,3nr "$dir/Testing/Temporary/CTestCostData.txt" | awk 'NR <= 8 {printf "%7.1f s  %s\n", $3, $1}'
}

cpu_seconds() {  # of the children that have ended
  local stat
  read -ra stat </proc/$$/stat
  echo $(((stat[15] + stat[16]) / $(getconf CLK_TCK)))
}
phases=()
phase() {  # NAME COMMAND…: runs it, and notes its time
  local name=$1 begin=$SECONDS cpu
  cpu=$(cpu_seconds)
  shift
  "$@"
  phases+=("$(printf '%6d s %6d s of CPU  %s' $((SECONDS - begin)) $(($(cpu_seconds) - cpu)) "$name")")
}
trap 'printf "%s\n" "where the time went:" "${phases[@]}" "$(printf "%6d s in all" $SECONDS)"' EXIT

phase "build" build_trivet "${plain[@]}"
phase "tests, of MPI ranks too" run_tests "${plain[0]}" "$@"
phase "fuzz targets" launch/fuzz.sh -runs=3000  # from the committed inputs on
if ((asan)); then
  phase "build with AddressSanitizer" build_trivet build-asan -DTRIVET_SANITIZE=address,undefined "${scopes[@]}"
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  phase "tests with AddressSanitizer, CUDA emulated" run_tests build-asan "$@"
fi
if ((tsan)); then
  phase "build with ThreadSanitizer" build_trivet build-tsan -DTRIVET_SANITIZE=thread
  export TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp halt_on_error=1"
  phase "tests with ThreadSanitizer, CUDA emulated" run_tests build-tsan "$@"
fi
