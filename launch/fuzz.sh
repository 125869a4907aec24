#!/usr/bin/env bash
# Runs the fuzz targets, starting from their committed corpora: installs what is missing, builds them with clang in
# build-fuzz, and fails if an input crashes a target. The input is left in build-fuzz/found.
#   launch/fuzz.sh [SECONDS | -runs=N] [TARGET…]       seconds for each target [60]; targets: safetensors manifest
#                                                       indexed_dataset config weights text tokenizer mlperf
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
limit=-max_total_time=60 level=-O1
case ${1:-} in
  -runs=[0-9]*) limit=$1 level=-O0; shift ;;  # a few runs take less time than an optimized build
  [0-9]*) limit=-max_total_time=$1; shift ;;
esac
all=(safetensors manifest indexed_dataset config weights text tokenizer mlperf)
targets=("$@")
(($#)) || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [[ " ${all[*]} " == *" $target "* ]] || usage "unknown argument $target"
done

packages+=(clang libclang-rt-14-dev)
install_packages
build_trivet build-fuzz -DTRIVET_FUZZ=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_CXX_COMPILER=clang++ -DTRIVET_FUZZ_LEVEL=$level
mkdir -p build-fuzz/found
rm -f build-fuzz/failed
fuzz() {
  local target=$1 log=build-fuzz/$1.log run=$limit
  mkdir -p "build-fuzz/corpus/$target"  # new inputs, not committed
  # Targets that read a configuration, or check a log against rules, take ten times as long as the others.
  [[ $target == @(config|mlperf) && $limit == -runs=* ]] && run=-runs=$((${limit#-runs=} / 10))
  if ! "build-fuzz/tests/fuzz/${target}_fuzz" "$run" -seed=1 -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
    -artifact_prefix="build-fuzz/found/$target-" "build-fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz: $target: failed; the input is in build-fuzz/found" >&2
    return 1
  fi
  echo "fuzz: $target: $(grep -E '^Done' "$log"), $(find "tests/fuzz/corpus/$target" -type f | wc -l) inputs committed"
}
for target in "${targets[@]}"; do  # one per core at a time
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || true; done
  fuzz "$target" || echo "$target" >>build-fuzz/failed &
done
wait
if [[ -f build-fuzz/failed ]]; then
  echo "fuzz: failed: $(sort build-fuzz/failed | paste -sd ' ')" >&2
  exit 1
fi
