#!/usr/bin/env bash
# MLPerf's official programs accept Trivet's output: the correct logs of tests/tools/mlperf/synthetic_log.h and those of
# configs/mlperf run by a scripted engine, each under its round's ruleset; a package whose result consists of ten such
# runs, and its score; and logs of the tiny benchmarks, under the rules common to all benchmarks. The programs refuse a
# log that lacks a line required by its ruleset. Installs the programs once, in a virtual environment.
#   tests/mlperf/check.sh [BUILD [TINY_LOG…]]       BUILD: the build's folder [build]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build} tools=$root/build-mlperf
shift || true
[[ -x $tools/bin/python ]] || { python3 -m venv "$tools" && "$tools/bin/pip" install -q mlperf-logging==4.1.68; }
official() { "$tools/bin/python" -m "mlperf_logging.$1" "${@:2}" 2>&1 || true; }  # output; the exit code is mostly 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=$work/package/results/system/llama31_8b
mkdir -p "$work"/{logs,package/systems} "$results"
TRIVET_MLPERF_LOGS=$work/logs TRIVET_MLPERF_PACKAGE=$results "$build/tests/tools_test" \
  --gtest_filter='MlperfLint.FindsNothingInCorrectLogs:MlperfLog.Of*' >"$work/tests" || { cat "$work/tests"; exit 1; }

accepted=0 refused=0
check() {  # LOG OPTION…
  local log=$1 said
  shift
  said=$(official compliance_checker --usage training --log_output /dev/null "$@" "$log")
  # An aborted run fails only the target check.
  if [[ $log == *-aborted.txt ]]; then
    said=$(grep -v "Failed checks for eval_accuracy" <<<"$said" | grep "CHECK for\|Required\|parsing errors" || true)
    [[ -n $said ]] || said=SUCCESS
  fi
  grep -q SUCCESS <<<"$said" && accepted=$((accepted + 1)) && return
  refused=$((refused + 1))
  echo "refused: $(basename "$log"): $said" | head -20
}
for log in "$work"/logs/*.txt; do check "$log" --ruleset "$(basename "$log" | cut -d- -f2).0"; done
echo "mlperf: $accepted logs accepted, $refused refused"
((refused == 0 && accepted > 0))

# The checker's rules for all benchmarks, in which the benchmark-specific rules from the division's file are replaced.
"$tools/bin/python" - "$work/tiny.yaml" <<'END'
import pathlib, re, sys
import mlperf_logging.compliance_checker as checker
common = pathlib.Path(checker.__file__).parent / "training_6.1.0" / "common.yaml"
text, changes = re.subn(r"enqueue_config\(.*?\)\);", "", common.read_text())
assert changes == 1, "another form of " + str(common)
pathlib.Path(sys.argv[1]).write_text(text + """
- KEY:
    NAME:  submission_benchmark
    REQ:   EXACTLY_ONE
    CHECK: " v['value'] in ['tiny', 'tiny_gpt3'] "
- KEY:
    NAME:  target_accuracy
    REQ:   EXACTLY_ONE
    POST:  " s['target'] = v['value'] "
- KEY:
    NAME:  run_stop
    REQ:   EXACTLY_ONE
    CHECK: " v['metadata']['status'] in ['success', 'aborted'] "
""")
END
accepted=0
for log; do
  check "$log" --ruleset 6.1.0 --config "$work/tiny.yaml"
done
(($# == 0)) || echo "mlperf: $accepted tiny logs accepted, $refused refused"
((refused == 0 && accepted == $#))

# A log that lacks a required line is refused. The keys in `free` are optional; before 6.1, those in `disclosure` too.
free=" submission_status seed target_accuracy eval_start eval_stop "
disclosure=" micro_batch_size tensor_parallelism pipeline_parallelism context_parallelism expert_parallelism config_filename \
lowest_numerical_precision_in_linear lowest_numerical_precision_in_attn lowest_numerical_precision_in_comm "
missed=0
for log in "$work"/logs/{llama31_8b-6.1,gpt3_175b-4.1,llama31_405b-6.0}-run.txt; do
  round=$(basename "$log" | cut -d- -f2)
  others=$free
  [[ $round == 6.1 ]] || others+="$disclosure max_steps "
  [[ $round != 4.1 ]] || others+=" opt_weight_decay "
  for key in $(sed 's/.*"key":"\([^"]*\)".*/\1/' "$log" | sort -u); do
    [[ $others != *" $key "* ]] || continue
    grep -v "\"key\":\"$key\"" "$log" >"$work/without.txt"
    said=$(official compliance_checker --usage training --ruleset "$round.0" --log_output /dev/null "$work/without.txt")
    ! grep -q SUCCESS <<<"$said" || { echo "accepted under $round without $key"; exit 1; }
    missed=$((missed + 1))
  done
done
echo "mlperf: $missed logs without a required line refused"

cp "$root/configs/mlperf/system.json" "$work/package/systems/system.json"
said=$(official package_checker "$work/package" training 6.1.0 --log_output /dev/null)
grep -q "FOUND NO ERRORS" <<<"$said" || { echo "$said" | tail -40; exit 1; }
# The official score equals ours.
official result_summarizer "$work/package" training 6.1.0 --csv "$work/scores.csv" >/dev/null
score=$("$tools/bin/python" -c 'import csv, sys; print("%.3f" % float(next(csv.DictReader(open(sys.argv[1])))["llama31_8b"]))' \
  "$work/scores.csv")
summary=$("$build/trivet" mlperf summary "$results")
grep -q "$score minutes" <<<"$summary" || { echo "the official score is $score"; echo "$summary"; exit 1; }
echo "mlperf: a result of ten runs is accepted as a package, with a score of $score minutes, as by trivet mlperf summary"
