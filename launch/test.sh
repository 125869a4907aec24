#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Prints where the time went.
#   launch/test.sh [--all] [--tsan] [CTEST ARGUMENT…]
#   launch/test.sh --slurm | --container | --browser      what CI has no time for; the first two as root
#     without   each test once, in less than ten minutes on two cores; CUDA is left out if there is no GPU
#     --all     what CI runs, in 20 to 30 minutes: with CUDA as AUTO finds it, tests of programs, MPI ranks and
#               instruction sets, the tools, and what sanitizer builds skip; two planted mistakes; then the other test
#               programs' cases under AddressSanitizer and UndefinedBehaviorSanitizer, with CUDA emulated on the CPU.
#               Both builds have small pieces (base/piece.h).
#     --tsan    as --all, plus all tests under ThreadSanitizer, which also detects missing barriers in CUDA kernels
#     --slurm   launch/slurm under Debian's Slurm, which it installs and starts: five minutes (tests/slurm/run.sh)
#     --container   launch/container and the .deb in Debian roots from debootstrap: ten minutes (tests/container/run.sh)
#     --browser     docs/play under Debian's Emscripten and Chromium, which it installs (tests/browser/run.py)
# A ctest test is a share of a program's cases: GTEST_FILTER=… selects cases, -R does not.
# TRIVET_RANDOM_LAYOUTS=N draws N random layouts: default 50; with --all 40, under ThreadSanitizer 8.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
all=0 tsan=0 apart=''
while (($#)); do
  case $1 in
    --all) all=1 ;;
    --tsan) all=1 tsan=1 ;;
    --slurm | --container | --browser) apart=${1#--} ;;
    *) break ;;
  esac
  shift
done
# ctest itself ignores options that it does not know.
for argument; do
  [[ $argument =~ ^--?[A-Za-z-]+ ]] && known=$(ctest --help 2>/dev/null) || continue
  [[ $known =~ [\ ,]${BASH_REMATCH[0]}[\ ,=[] ]] || usage "unknown argument $argument"
done
if [[ $apart == container ]]; then exec tests/container/run.sh -DTRIVET_CPU_ISAS=native; fi
packages+=("${test_packages[@]}")
[[ $apart != browser ]] || packages+=(emscripten chromium chromium-driver python3-selenium)
install_packages

# For a build whose tests run only once: unity builds, a few processes that share the cases, and -Og for all but the
# kernels. -Og cuts GCC's compile time to two thirds; turning off its garbage collection cuts it to six sevenths.
heap="--param ggc-min-heapsize=1000000"
once=(-DCMAKE_UNITY_BUILD=ON -DTRIVET_SHARED_PROCESSES=ON -DTRIVET_LEVEL=-Og "-DCMAKE_CXX_FLAGS=$heap")
# AddressSanitizer without use-after-scope checks, which account for a quarter of its compile time.
scopes="-DCMAKE_CXX_FLAGS=$heap -fno-sanitize-address-use-after-scope"

if [[ $apart == slurm ]]; then
  build_trivet build-test "${once[@]}" -DTRIVET_CUDA=OFF -- trivet
  exec tests/slurm/run.sh build-test/trivet
fi

if [[ $apart == browser ]]; then
  docs/play/build.sh
  build_trivet build-test "${once[@]}" -DTRIVET_CUDA=OFF -- trivet
  exec tests/browser/run.py build-test/trivet build-play
fi

run_tests() {  # DIR CTEST-ARGUMENT…
  local dir=$1
  shift
  # Programs started by tests share the cores, so a thread that waits for its team must not spin.
  export OMP_WAIT_POLICY=passive
  # One job more than cores, because multi-rank and fault tests spend a quarter of their time waiting.
  (cd "$dir" && ctest --output-on-failure -j "$(($(nproc) + 1))" "$@")
  echo "$dir: the slowest tests"
  sort -k3,3nr "$dir/Testing/Temporary/CTestCostData.txt" | awk 'NR <= 8 {printf "%7.1f s  %s\n", $3, $1}'
}

cpu_seconds() {  # of child processes that have exited
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

if ((!all)); then
  nvidia-smi -L >/dev/null 2>&1 || once+=(-DTRIVET_CUDA=OFF)
  export TRIVET_RANDOM_LAYOUTS=${TRIVET_RANDOM_LAYOUTS-50}
  phase "build" build_trivet build-test "${once[@]}"
  phase "tests, of MPI ranks too" run_tests build-test "$@"
  exit
fi
launch/mutants.sh --check
once+=(-DTRIVET_SMALL_PIECES=ON)
phase "build" build_trivet build-all "${once[@]}" -DTRIVET_BESIDE_SANITIZERS=ON
phase "tests, of MPI ranks too" run_tests build-all "$@"
phase "two planted mistakes" launch/mutants.sh --draw 2 --build build-all
phase "build with AddressSanitizer" build_trivet build-asan -DTRIVET_SANITIZE=address,undefined -DTRIVET_TOOLS=OFF \
  -DTRIVET_SMALL_PIECES=ON "$scopes"
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
phase "tests with AddressSanitizer, CUDA emulated" run_tests build-asan "$@"
((tsan)) || exit 0
phase "build with ThreadSanitizer" build_trivet build-tsan -DTRIVET_SANITIZE=thread -DTRIVET_SMALL_PIECES=ON
export TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp halt_on_error=1"
phase "tests with ThreadSanitizer, CUDA emulated" run_tests build-tsan "$@"
