#!/usr/bin/env bash
# The official checker accepts the correct logs of tests/engine/mlperf/synthetic_log.h, under the ruleset of their round.
# Installs the checker in a virtual environment, once.
#   tests/mlperf/check.sh [BUILD]       the build's folder [build]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build} tools=$root/build-mlperf
[[ -x $tools/bin/python ]] || { python3 -m venv "$tools" && "$tools/bin/pip" install -q mlperf-logging==4.1.68; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
TRIVET_MLPERF_LOGS=$logs "$build/tests/engine_test" --gtest_filter=MlperfLint.FindsNothingInCorrectLogs >/dev/null
accepted=0 refused=0
for log in "$logs"/*.txt; do
  round=$(basename "$log" | cut -d- -f2)
  # By its words: the exit code is 0 whatever it found.
  said=$("$tools/bin/python" -m mlperf_logging.compliance_checker --usage training --ruleset "$round.0" \
    --log_output /dev/null "$log" 2>&1 || true)
  # An aborted run fails one check, that of the target.
  if [[ $log == *-aborted.txt ]]; then
    said=$(grep -v "Failed checks for eval_accuracy" <<<"$said" | grep -c "CHECK for\|Required\|parsing errors" || true)
    [[ $said == 0 ]] && accepted=$((accepted + 1)) && continue
  elif grep -q SUCCESS <<<"$said"; then
    accepted=$((accepted + 1)) && continue
  fi
  refused=$((refused + 1))
  echo "refused: $(basename "$log"): $said" | head -20
done
echo "mlperf: $accepted logs accepted, $refused refused"
((refused == 0 && accepted > 0))
