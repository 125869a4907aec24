#!/usr/bin/env bash
# Runs every command of the course's chapters as written and compares its output with the page's; before that, tests
# every exercise: its solution passes, and its mistake is noticed. Installs and builds first. CI runs the same as tests.
#   docs/course/run_all.sh [--short]
#     --short   only the chapters' commands, with build/trivet: under three minutes once that is built
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../launch/setup.sh"
[[ $# == 0 || $* == --short ]] || usage "unknown argument $*"
cd "$root"
trivet=build/trivet
if (($# == 0)); then
  launch/test.sh -R '^course\.'
  trivet=build-test/trivet
elif [[ ! -x $trivet ]]; then
  packages+=("${test_packages[@]}")
  install_packages
  build_trivet build -- trivet
fi
exec python3 tests/docs/commands.py --source . --trivet "$trivet" --only docs/course/
