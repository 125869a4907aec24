#!/usr/bin/env bash
# An exercise of the course: builds your answer and tests it. docs/course/exercises/README.md explains the workflow.
#   launch/exercise.sh                    the exercises by chapter, and which you have solved
#   launch/exercise.sh NAME               tests answers/NAME.cc, which begins as a copy of the hole
#   launch/exercise.sh NAME --solution    tests docs/course/exercises/solutions/NAME.cc instead
# Installs what it needs and builds first: this takes minutes once, then seconds.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
exercises=docs/course/exercises

name='' kind=exercise
while (($#)); do
  case $1 in
    --solution) kind=solution ;;
    -*) usage "unknown argument $1" ;;
    *)
      [[ -z $name ]] || usage "unknown argument $1"
      name=${1%.cc}
      ;;
  esac
  shift
done
if [[ -z $name ]]; then
  [[ $kind == exercise ]] || usage "--solution needs a NAME"
  for file in "$exercises"/*.h; do
    one=$(basename "$file" .h) state=open
    [[ answers/$one.solved -nt answers/$one.cc ]] && state=solved
    sed -n "1s/.*: chapter \([0-9]*\), \(.*\)/\1 $one \2/p" "$file" | {
      read -r chapter _ minutes
      printf 'chapter %2d  %-20s %-12s %s\n' "$chapter" "$one" "$minutes" "$state"
    }
  done | sort -s -k2,2n
  exit
fi
if [[ ! -f $exercises/$name.h ]]; then
  near=''
  for file in "$exercises"/*"${name:0:4}"*.h; do
    [[ ! -f $file ]] || near+=" $(basename "$file" .h)"
  done
  usage "there is no exercise $name${near:+; did you mean$near?}"
fi

packages+=(libgtest-dev)
install_packages
answer=$exercises/solutions/$name.cc
if [[ $kind == exercise ]]; then
  answer=answers/$name.cc
  mkdir -p answers
  [[ -f $answer ]] || cp "$exercises/$name.cc" "$answer"
fi
# An existing build folder keeps its configuration.
options=(-DCMAKE_UNITY_BUILD=ON -DTRIVET_TESTS=OFF -DTRIVET_CUDA=OFF -DTRIVET_CPU_ISAS=native)
[[ -f build/build.ninja && -f build/.configured ]] && read -ra options <<<"$(<build/.configured)"
[[ ${options[*]} == default ]] && options=()
target=$kind.$name
if [[ -f build/build.ninja && $(ninja -C build -t targets all) != *$'\n'"$target: "* ]]; then
  cmake build >/dev/null  # picks up a new answer, or GoogleTest
fi
build_trivet build "${options[@]}" -- "$target" || {
  echo "the build failed (see above); the exercise is $answer" >&2
  exit 1
}

code=0
OMP_WAIT_POLICY=passive timeout 60 build/$exercises/"$target" --gtest_brief=1 || code=$?
if ((code == 124)); then
  echo "stopped after a minute: an endless loop, or all ranks wait for each other" >&2
elif ((code > 128)); then
  echo "ended by signal $((code - 128)): probably an index is out of range" >&2
fi
if [[ $kind == solution ]]; then exit $code; fi
if ((code == 0)); then
  touch "answers/$name.solved"
  echo "$name: solved. Compare with $exercises/solutions/$name.cc, and with the mistake in $exercises/mistakes/$name.cc."
else
  rm -f "answers/$name.solved"
  echo "$name: not yet. Edit $answer; the question is in $exercises/$name.h, with hints below it."
fi
exit $code
