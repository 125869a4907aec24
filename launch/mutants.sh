#!/usr/bin/env bash
# Plants mutants (mistakes), one at a time, and checks that a test detects each: first the law that its story names; if
# that passes, all tests. Prints the score; exits with 1 if a mutant survives, or passes its law.
#   launch/mutants.sh [--check] [--draw N] [--build DIR] [NAME…]      all of tests/mutants, or only those named; for a
#                                                                     single one, also its story and how its law fails
#     --check      only checks that each applies to the sources, and names a law
#     --draw N     N of those marked for CI, chosen by the hash of the commit: different ones for each commit; only their
#                  laws are run
#     --build DIR  a build folder of the tests, as it is [build-mutants, with CUDA emulated on the CPU]
# tests/mutants/NAME.patch tells the story of its mistake above the patch. The lines that this script reads:
#     Law: PROGRAM FILTER     a test program, and which of its cases (--gtest_filter)
#     Law: ctest NAME         a ctest test, for what needs several processes
#     In CI: yes              the law has been seen to fail in CI's first build, which emulates no GPU
# The mistake is in the checkout while its tests run; it is reverted at the end, or on Ctrl-C.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
check=0 draw=0 build=build-mutants
while (($#)); do
  case $1 in
    --check) check=1 ;;
    --draw | --build) (($# > 1)) || usage "$1 needs a value"; [[ $1 == --draw ]] && draw=$2 || build=${2%/}; shift ;;
    -*) usage "unknown argument $1" ;;
    *) break ;;
  esac
  shift
done
names=("$@")
(($#)) || for file in tests/mutants/*.patch; do names+=("$(basename "$file" .patch)"); done
for name in "${names[@]}"; do
  file=tests/mutants/$name.patch
  [[ -f $file ]] || usage "there is no $file"
  git apply --check "$file" || { echo "mutants: $file does not apply: the source has changed" >&2; exit 1; }
  [[ $(grep '^Law: ' "$file") && ! $(grep '^Law: ' "$file" | grep -vE '^Law: [^ ]+ [^ ]+$') ]] ||
    { echo "mutants: $file names no law of the form PROGRAM FILTER" >&2; exit 1; }
done
((!check)) || { echo "mutants: ${#names[@]} apply"; exit 0; }
build_all() {
  if [[ $build == build-mutants ]]; then
    build_trivet "$build" -DTRIVET_CUDA=EMULATED -DTRIVET_SHARED_PROCESSES=ON -DTRIVET_LEVEL=-Og -DTRIVET_SMALL_PIECES=ON
  else
    ninja -C "$build"
  fi >"$build/mutants.log" 2>&1
}
packages+=("${test_packages[@]}")
install_packages
mkdir -p "$build"
build_all || { tail -n 30 "$build/mutants.log"; exit 1; }
export OMP_WAIT_POLICY=passive

planted=
take_back() { [[ ! $planted ]] || git apply -R "$planted"; planted=; }
trap take_back EXIT
trap 'exit 130' INT TERM

# True if the law fails. A filter that selects nothing is an error; a run that does not end has detected the mutant.
law_fails() {  # PROGRAM FILTER
  if [[ $1 == ctest ]]; then
    ! (cd "$build" && timeout 600 ctest --no-tests=error -R "$2") >"$build/mutants.log" 2>&1
  else
    ! timeout 600 "$build/tests/$1" --gtest_filter="$2" --gtest_brief=1 --gtest_fail_fast >"$build/mutants.log" 2>&1
  fi
}
selects() {
  if [[ $1 == ctest ]]; then (cd "$build" && ctest -N -R "$2") | grep -q 'Test *#'
  else "$build/tests/$1" --gtest_list_tests --gtest_filter="$2" | grep -q '^  '; fi
}

if ((draw)); then
  seed=$(git rev-parse HEAD 2>/dev/null || echo "no commit")
  mapfile -t names < <(for name in "${names[@]}"; do
    if grep -q '^In CI: yes$' "tests/mutants/$name.patch"; then echo "$(sha1sum <<<"$seed $name") $name"; fi
  done | sort | sed 's/.* //' | head -n "$draw")
  ((${#names[@]} == draw)) || usage "only ${#names[@]} are marked \"In CI: yes\", expected $draw"
fi

alone() { ((${#names[@]} == 1)); }

caught=0 late=() alive=()
for name in "${names[@]}"; do
  file=tests/mutants/$name.patch
  begin=$SECONDS how="lives"
  while read -r _ program filter; do
    selects "$program" "$filter" || { echo "mutants: $name: no test matches $program $filter" >&2; exit 1; }
  done < <(grep '^Law: ' "$file")
  ! alone || sed '/^diff \|^--- /,$d' "$file"
  git apply "$file"
  planted=$file
  if ! build_all; then
    tail -n 30 "$build/mutants.log"
    echo "mutants: $name does not compile" >&2
    exit 1
  fi
  while read -r _ program filter; do
    law_fails "$program" "$filter" || continue
    how="noticed by its law"
    ! alone || grep -m 1 -A 12 ': Failure$' "$build/mutants.log" | sed "s|^$root/||" || true
    break
  done < <(grep '^Law: ' "$file")
  if [[ $how == lives ]] && ((!draw)) && ! (cd "$build" && timeout 3600 ctest --stop-on-failure -j "$(($(nproc) + 1))") >"$build/mutants.log" 2>&1
  then how="noticed, but not by its law: $(sed -n 's/.*- \(.*\) (\(Failed\|Timeout\|SEGFAULT\|Subprocess aborted\|SIG.*\)).*/\1/p' "$build/mutants.log" | head -n 1)"; fi
  take_back
  printf '%-34s %5d s  %s\n' "$name" $((SECONDS - begin)) "$how"
  case $how in lives) alive+=("$name") ;; noticed\ by*) caught=$((caught + 1)) ;; *) late+=("$name") ;; esac
done
((draw)) || build_all
echo "mutants: $caught of ${#names[@]} are noticed by their law, ${#late[@]} by another test, ${#alive[@]} live${alive[*]:+: ${alive[*]}}"
((caught == ${#names[@]}))
