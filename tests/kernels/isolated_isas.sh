#!/usr/bin/env bash
# Code compiled for one instruction set must not run on a processor without it (kernels/cpu/kernels.h): in each of its
# object files, every symbol that the linker could use for other code is in the ISA's own namespace, and nothing runs
# before main. No other source may be compiled with instructions that some processors lack.
#   isolated_isas.sh COMPILE-COMMANDS NM READELF constructors|no-constructors [DIR/cpu_ISA.o…]
# Sanitizers add constructors to every object.
set -euo pipefail
commands=$1 nm=$2 readelf=$3 constructors=$4
shift 4
failed=0
problem() { echo "$1:"; sed 's/^/    /' | head -n 20; failed=1; }

for object in "$@"; do
  space=$(basename "$object" .o)
  mangled=${#space}$space
  exported=$("$nm" --extern-only --defined-only --format=just-symbols "$object")
  grep -q "${mangled}14create_kernels" <<<"$exported" || problem "$object does not export create_kernels" <<<"$exported"
  ! foreign=$(grep -v "$mangled" <<<"$exported") || problem "$object exports what is not of trivet::$space" <<<"$(c++filt <<<"$foreign")"
  groups=$("$readelf" --wide --section-groups "$object" 2>/dev/null | grep COMDAT || true)
  [[ -z $groups ]] || problem "$object has COMDAT groups" <<<"$groups"
  initial=$("$readelf" --wide --sections "$object" | grep -oE '[.](init_array|preinit_array|ctors)[^ ]*' || true)
  [[ -z $initial || $constructors == constructors ]] || problem "$object runs code before main" <<<"$initial"
done

flagged=$(grep -E '"command":.* -m(arch|avx|amx|fma|sse[34])' "$commands" | grep -v -- '-DTRIVET_CPU=cpu_' | grep -oE '[^ ]+"?,?$' || true)
[[ -z $flagged ]] || problem "compiled for some processors only" <<<"$flagged"
exit $failed
