#!/usr/bin/env bash
# Packs the programs of gpu.sh for a machine that has a GPU but not the packages to build on: programs without debug
# information and every shared library they need, except glibc, libstdc++ (both at least as new as here) and NVIDIA's
# (cudart, cuBLASLt, NCCL: from a toolkit or Python's nvidia packages). Includes Open MPI, for ranks that are processes.
#   launch/gpu_pack.sh [--out DIR] [--jobs N | --programs BUILD]
#     --out       the folder to make, and DIR.tar.xz next to it [build-pack/pack]
#     --programs  a build folder whose programs are packed as they are, with less compression: for CI, to check the size
# On the GPU machine, with the folder or the unpacked archive:
#     DIR/launch/gpu.sh one --programs DIR --out RESULTS    and, for a single program, DIR/bin/trivet …
# Tests that read files of the source tree fail there; those that gpu.sh runs read none.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
out='' jobs=() build='' level=-6
while (($#)); do
  [[ $1 == --out || $1 == --jobs || $1 == --programs ]] || usage "unknown argument $1"
  (($# >= 2)) || usage "$1 needs a value"
  case $1 in
    --out) out=$(realpath -m "$2") ;;
    --jobs) jobs=(-j "$2") ;;
    --programs) build=$(realpath "$2") level=-0 ;;
  esac
  shift 2
done
cd "$root"
: "${out:=$root/build-pack/pack}"
most=$((60 << 20))

programs=(trivet kernels_test parallel_test engine_test cuda_ops_bench train_bench)
if [[ ! $build ]]; then
  build='build-pack'
  packages+=("${test_packages[@]}")
  install_packages
  # DT_RPATH also applies to the dependencies of libraries that have no run path of their own.
  build_trivet "$build" -DTRIVET_MPI=ON -DTRIVET_CUDA=ON -DTRIVET_NCCL=ON \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH="\$ORIGIN/../lib" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags -- "${jobs[@]}" "${programs[@]}"
fi

rm -rf "$out"
mkdir -p "$out"/{bin,lib,launch,tests/bench,configs}
for name in "${programs[@]}"; do
  from=$build/tests/$name
  [[ $name == trivet ]] && from=$build/trivet
  strip -o "$out/bin/$name" "$from"
done
# Open MPI's components for one machine: none for networks, schedulers or files.
mkdir -p "$out"/ompi/{bin,share,lib/openmpi}
cp -rL /usr/share/openmpi "$out/ompi/share/"
for program in mpirun orted; do strip -o "$out/ompi/bin/$program" "$(realpath "$(command -v $program)")"; done
for component in /usr/lib/*/openmpi/lib/openmpi*/mca_*.so; do
  [[ $component =~ ucx|_ofi|psm|openib|slurm|flux|gridengine|fcoll|sharedfp|scoll|sshmem|memheap|monitoring ]] ||
    strip -o "$out/ompi/lib/openmpi/$(basename "$component")" "$(realpath "$component")"
done
elsewhere='^(linux-vdso|ld-linux.*|libc|libm|libpthread|librt|libdl|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libnccl)\.so'
ldd "$out"/bin/* "$out"/ompi/bin/* "$out"/ompi/lib/openmpi/* | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
  [[ $name =~ $elsewhere ]] || strip -o "$out/lib/$name" "$(realpath "$path")"
done
# gpu.sh's LD_LIBRARY_PATH finds all of the pack's own libraries.
lost=$(LD_LIBRARY_PATH=$out/lib ldd "$out"/bin/* "$out"/ompi/bin/* "$out"/ompi/lib/openmpi/* |
  awk -v own="$out/lib/" '$2 == "=>" && index($3, own) != 1 { print $1 }' | sort -u | grep -vE "$elsewhere" || true)
[[ ! $lost ]] || { echo "gpu_pack.sh: not in the pack: $lost" >&2; exit 70; }
cp launch/gpu.sh launch/setup.sh "$out/launch/"
cp tests/bench/torch_step.py "$out/tests/bench/"
cp configs/*.yaml "$out/configs/"

tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz -T0 "$level" >"$out.tar.xz"
size=$(du -sb "$out" | cut -f1) packed=$(stat -c %s "$out.tar.xz")
printf '%s: %d MiB; %s: %d MiB; for GPUs of compute capability 9.0 or newer\n' "$out" $((size >> 20)) \
  "$out.tar.xz" $((packed >> 20))
((packed <= most)) || { echo "gpu_pack.sh: the archive exceeds $((most >> 20)) MiB" >&2; exit 70; }
