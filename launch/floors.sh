#!/usr/bin/env bash
# Draws the floors of docs/architecture.md, top floor first: each with its folders, their lines of production code
# (comments and blank lines included) and the budgets. tests/base/fence_test.cc enforces them.
set -euo pipefail
cd "$(dirname "$0")/.."

lines() { git ls-files -co --exclude-standard -- "$@" | grep -E '\.(h|cc|cu|cuh)$' | xargs -r cat | wc -l; }
floor() {  # NUMBER NAME
  printf '%s  %-9s %7s   ' "$1" "$2" "$(lines "$2")"
  local folder text=""
  for folder in "$2"/*/; do
    [[ -d $folder && $(lines "$folder") -gt 0 ]] && text+="$(basename "$folder") $(lines "$folder"), "
  done
  echo "${text%, }"
}
number=5
for name in launch tools engine parallel kernels base; do
  floor $number $name
  [[ $name == tools ]] && printf '%s\n' "   ---- below: what trains (trivet-core), above: what is around it ----"
  number=$((number - 1))
done
core=$(lines base kernels parallel engine) around=$(lines tools launch)
printf '\nwhat trains %s (budget 36500), around it %s (18500), together %s (55000)\n' "$core" "$around" $((core + around))
