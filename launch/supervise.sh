#!/usr/bin/env bash
# Runs a training command, and runs it again after a failure; trivet train goes on from its last committed checkpoint.
#   launch/supervise.sh --run-dir DIR [--restarts K] [--delay SECONDS] -- COMMAND…
#     --run-dir    train.run_dir of the run: outcome.json, checkpoints/latest and metrics.jsonl are read there
#     --restarts   restarts in a row without a new committed step, then exit 93 [3]
#     --delay      before a restart, doubled as long as there is no progress, at most 60 [1]
# Ends with 0 when the command is done; with 64, 65 or 93 at once, as a restart would not help; with 75 (saved, please
# requeue) where a scheduler requeues the job (SLURM_JOB_ID is set), else the command is started again at once.
# SIGTERM, SIGINT, SIGUSR1 and SIGHUP (a terminal that is closed; not under nohup) go to the command, whose end is then
# the end.
set -uo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 64; }
say() { echo "supervise: $*" >&2; }
is_number() { [[ $1 =~ ^[0-9]+(\.[0-9]+)?$ ]]; }

run_dir='' restarts=3 delay=1
while (($# > 0)); do
  case $1 in
    --run-dir) run_dir=${2-}; shift 2 || usage ;;
    --restarts) restarts=${2-}; shift 2 || usage ;;
    --delay) delay=${2-}; shift 2 || usage ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[[ -n $run_dir && $# -gt 0 && $restarts =~ ^[0-9]+$ ]] && is_number "$delay" || usage

committed_step() {  # of the checkpoint that is latest; -1: none
  local name=''
  [[ -r $run_dir/checkpoints/latest ]] && read -r name <"$run_dir/checkpoints/latest"
  [[ $name =~ ^step-0*([0-9]+)$ ]] && echo "${BASH_REMATCH[1]}" || echo -1
}
of_outcome() { sed -n "s/^ *\"$1\": \"\{0,1\}\(.*[^\",]\)\"\{0,1\},\{0,1\}\$/\1/p" "$run_dir/outcome.json" 2>/dev/null | head -1; }
bytes_of_metrics() { stat -c %s "$run_dir/metrics.jsonl" 2>/dev/null || echo 0; }
seconds_since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }

child=0 asked=0 to_send=''
forward() {
  asked=1 to_send=$1
  pass_on
}
pass_on() {  # a signal may come when the command is started and its number not known yet
  ((child > 0)) && [[ -n $to_send ]] || return 0
  local signal
  signal=$to_send to_send=''
  kill -s "$signal" "$child" 2>/dev/null
}
for signal in TERM INT USR1 HUP; do
  # shellcheck disable=SC2064
  trap "forward $signal" "$signal"
done
set -m  # the command in a process group of its own: Ctrl-C reaches it through us, once

stalled=0 attempt=0 wait_s=$delay died=''
while :; do
  before=$(committed_step)
  rm -f "$run_dir/outcome.json"
  metrics=$(bytes_of_metrics)
  "$@" &
  child=$!
  pass_on
  watcher=0
  if [[ -n $died ]]; then
    (
      trap - TERM INT USR1 HUP
      while (($(bytes_of_metrics) <= metrics)); do sleep 0.1; done
      say "restart $attempt: first new step $(seconds_since "$died") s after the end of the last attempt"
    ) &
    watcher=$!
  fi
  wait "$child"; code=$?
  while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done  # a signal to us ended the first wait
  died=$(date +%s.%N)
  child=0
  if ((watcher > 0)); then
    # Where there is a new step, it is about to say so and to end.
    (($(bytes_of_metrics) > metrics)) || kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
  fi

  # The code may have been changed on its way through a launcher; the file has not.
  told=$(of_outcome exit_code)
  [[ -n $told ]] && code=$told
  what=$(of_outcome what)
  step=$(committed_step)
  if ((code == 0)); then exit 0; fi
  say "attempt $((attempt + 1)) ended with $code${what:+: $what}"
  if ((asked)); then exit "$code"; fi
  case $code in
    64 | 65 | 93) say "a restart would not help"; exit "$code" ;;
    75) if [[ -n ${SLURM_JOB_ID-} ]]; then exit 75; fi ;;
  esac
  if ((step > before)); then
    stalled=0 wait_s=$delay
  elif ((++stalled > restarts)); then
    say "$restarts restarts in a row without a new committed step (the last is $step): given up"
    exit 93
  fi
  attempt=$((attempt + 1))
  if ((code != 75)); then
    sleep "$wait_s" &  # which a signal ends
    child=$!
    pass_on
    wait "$child"
    child=0
    ((asked)) && exit "$code"
    if ((stalled > 0)); then wait_s=$(awk -v s="$wait_s" 'BEGIN { s *= 2; print s > 60 ? 60 : s }'); fi
  fi
  say "restart $attempt from step $((step < 0 ? 0 : step))"
done
