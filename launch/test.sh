#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Prints where the time went.
#   launch/test.sh [--all] [--tsan] [CTEST ARGUMENT…]
#   launch/test.sh --slurm | --container      what CI has no time for, as root
#     without   each test once, in less than ten minutes on two cores; CUDA is left out where no GPU is
#     --all     what CI runs, in 20 to 30 minutes: with CUDA as AUTO finds it, tests of programs, MPI ranks and
#               instruction sets, the tools, and what sanitizers leave out; then the fuzz targets; then the cases of the other
#               test programs under AddressSanitizer with UndefinedBehaviorSanitizer, where CUDA is emulated on the CPU
#     --tsan    as --all, and all tests under ThreadSanitizer too, which also sees what CUDA kernels lack in barriers
#     --slurm   launch/slurm under Debian's Slurm, which it installs and starts: five minutes (tests/slurm/run.sh)
#     --container   launch/container and the .deb in Debian roots of debootstrap's: ten minutes (tests/container/run.sh)
# One test of ctest's is a share of a program's cases: GTEST_FILTER=… chooses among the cases, -R does not.
# TRIVET_RANDOM_LAYOUTS=N draws N random layouts: 50 without --all; with it 40, under sanitizers 8.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
all=0 tsan=0 apart=''
while (($#)); do
  case $1 in
    --all) all=1 ;;
    --tsan) all=1 tsan=1 ;;
    --slurm | --container) apart=${1#--} ;;
    *) break ;;
  esac
  shift
done
# ctest itself passes over what it does not know.
for argument; do
  [[ $argument =~ ^--?[A-Za-z-]+ ]] && known=$(ctest --help 2>/dev/null) || continue
  [[ $known =~ [\ ,]${BASH_REMATCH[0]}[\ ,=[] ]] || usage "unknown argument $argument"
done
if [[ $apart == container ]]; then exec tests/container/run.sh -DTRIVET_CPU_ISAS=native; fi
packages+=("${test_packages[@]}")
install_packages

# For a build that is made to run all tests once: unity builds, a few processes that share the cases, and -Og for all but
# the kernels, with which GCC compiles in two thirds of the time; in six sevenths where it collects no garbage.
heap="--param ggc-min-heapsize=1000000"
once=(-DCMAKE_UNITY_BUILD=ON -DTRIVET_SHARED_PROCESSES=ON -DTRIVET_LEVEL=-Og "-DCMAKE_CXX_FLAGS=$heap")
# AddressSanitizer does not look for uses after a scope has ended: that takes a quarter of its compile time.
scopes="-DCMAKE_CXX_FLAGS=$heap -fno-sanitize-address-use-after-scope"

if [[ $apart == slurm ]]; then
  build_trivet build-test "${once[@]}" -DTRIVET_CUDA=OFF -- trivet
  exec tests/slurm/run.sh build-test/trivet
fi

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

if ((!all)); then
  nvidia-smi -L >/dev/null 2>&1 || once+=(-DTRIVET_CUDA=OFF)
  export TRIVET_RANDOM_LAYOUTS=${TRIVET_RANDOM_LAYOUTS-50}
  phase "build" build_trivet build-test "${once[@]}"
  phase "tests, of MPI ranks too" run_tests build-test "$@"
  exit
fi
launch/mutants.sh --check
phase "build" build_trivet build-all "${once[@]}" -DTRIVET_BESIDE_SANITIZERS=ON
phase "tests, of MPI ranks too" run_tests build-all "$@"
phase "fuzz targets" launch/fuzz.sh -runs=3000  # from the committed inputs on
phase "build with AddressSanitizer" build_trivet build-asan -DTRIVET_SANITIZE=address,undefined -DTRIVET_TOOLS=OFF "$scopes"
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
phase "tests with AddressSanitizer, CUDA emulated" run_tests build-asan "$@"
((tsan)) || exit 0
phase "build with ThreadSanitizer" build_trivet build-tsan -DTRIVET_SANITIZE=thread
export TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp halt_on_error=1"
phase "tests with ThreadSanitizer, CUDA emulated" run_tests build-tsan "$@"
