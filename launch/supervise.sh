#!/usr/bin/env bash
# Runs a training command, and runs it again after a failure; trivet train resumes from its last committed checkpoint.
#   launch/supervise.sh --run-dir DIR [--restarts K] [--delay SECONDS] [--kill-after SECONDS] -- COMMAND…
#     --run-dir    train.run_dir of the run, from which outcome.json, checkpoints/latest and metrics.jsonl are read
#     --restarts   consecutive restarts without a new committed step, or jobs with at most one, before exit 93 [3]
#     --delay      before a restart, doubled as long as there is no progress, at most 60 [1]
#     --kill-after time a signalled command has to end before it is killed; 0: no limit [600]
# Exits with 0 when the command is done; with 64, 65 or 93 immediately, as a restart would not help; with 75 (saved,
# please requeue) if a scheduler requeues the job (SLURM_JOB_ID or PBS_JOBID is set), else restarts it immediately.
# Forwards SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGHUP (a closed terminal; not under nohup), and exits when the command
# has; mpirun gets SIGUSR1, which it forwards to the ranks (after SIGTERM it kills them a second later, saved or not).
# Needs bash 4 or later and GNU coreutils; the shell computes all numbers, so neither awk nor the locale matters.
set -uo pipefail

usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit "${1-0}"; }
wrong() { say "$1"; usage 64 >&2; }
say() { echo "supervise: $*" >&2; }
# Converts SECONDS or SECONDS.DECIMALS to milliseconds; fails if it is not a number.
milliseconds() {
  [[ $1 =~ ^([0-9]{1,9})(\.([0-9]{1,9}))?$ ]] || return 1
  local decimals=${BASH_REMATCH[3]-}000
  echo $((10#${BASH_REMATCH[1]} * 1000 + 10#${decimals:0:3}))
}
in_seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }
now_ms() { echo $(($(date +%s%N) / 1000000)); }

run_dir='' restarts=3 delay=1 kill_after=600
while (($# > 0)); do
  case $1 in
    --run-dir) run_dir=${2-}; shift 2 || wrong "$1 needs a value" ;;
    --restarts) restarts=${2-}; shift 2 || wrong "$1 needs a value" ;;
    --delay) delay=${2-}; shift 2 || wrong "$1 needs a value" ;;
    --kill-after) kill_after=${2-}; shift 2 || wrong "$1 needs a value" ;;
    --) shift; break ;;
    -h | --help) usage ;;
    *) wrong "unknown argument $1" ;;
  esac
done
[[ -n $run_dir ]] || wrong "--run-dir is missing"
(($# > 0)) || wrong "no command after --"
[[ $restarts =~ ^[0-9]{1,9}$ ]] || wrong "--restarts: found \"$restarts\", expected a number"
restarts=$((10#$restarts))
delay=$(milliseconds "$delay") || wrong "--delay: expected seconds"
kill_after=$(milliseconds "$kill_after") || wrong "--kill-after: expected seconds"

committed_step() {  # step of the latest checkpoint; -1: none
  local name=''
  [[ -r $run_dir/checkpoints/latest ]] && read -r name <"$run_dir/checkpoints/latest"
  [[ $name =~ ^step-0*([0-9]+)$ ]] && echo "${BASH_REMATCH[1]}" || echo -1
}
of_outcome() { sed -n "s/^ *\"$1\": \"\{0,1\}\(.*[^\",]\)\"\{0,1\},\{0,1\}\$/\1/p" "$run_dir/outcome.json" 2>/dev/null | head -n 1; }
last_metrics() { tail -n 1 "$run_dir/metrics.jsonl" 2>/dev/null; }

# Ends the job so that the scheduler requeues it. RUN_DIR/requeues counts consecutive jobs with at most one new step:
# whatever ended this job so soon, its walltime or a signal, would end the next one just as soon.
requeue() {
  local short=0
  [[ -r $run_dir/requeues ]] && read -r short <"$run_dir/requeues"
  [[ $short =~ ^[0-9]{1,9}$ ]] || short=0
  short=$((step > first + 1 ? 0 : short + 1))
  if ((short < restarts || short == 0)); then
    echo "$short" >"$run_dir/requeues"
    exit 75
  fi
  rm -f "$run_dir/requeues"
  say "$short job$( ((short == 1)) || echo s) in a row ended after at most one new step (the last is $step)," \
    "for want of time or at a signal: give each more time; not requeued"
  exit 93
}

# True if the newest record is of a step that the command has completed since it started.
has_new_step() {
  local line
  line=$(last_metrics)
  [[ $line == *'"loss"'* && $line != "$metrics" ]]
}

child=0 asked=0 to_send='' killer=0
mpi=0 launcher=''
case ${1##*/} in
  mpirun | mpiexec | mpirun.sh) mpi=1 launcher=$1 ;;
  srun) launcher=$1 ;;
esac
forward() {
  asked=1 to_send=$1
  ((mpi == 0)) || to_send=USR1
  pass_on
}
pass_on() {  # a signal may arrive while the command starts and its PID is not yet known
  ((child > 0)) && [[ -n $to_send ]] || return 0
  local signal
  signal=$to_send to_send=''
  kill -s "$signal" "$child" 2>/dev/null
  ((kill_after > 0 && killer == 0)) || return 0
  (
    trap - TERM INT USR1 USR2 HUP
    sleep "$(in_seconds "$kill_after")"
    say "the command has not ended $(in_seconds "$kill_after") s after SIG$signal: killed"
    kill -s KILL -- "-$child" 2>/dev/null
  ) &
  killer=$!
}
# Waits for a process; sets `code` to its exit code. `wait` returns early on a signal, or if the process is stopped.
wait_for() {
  child=$1
  pass_on
  while :; do
    wait "$child" 2>/dev/null; code=$?
    kill -0 "$child" 2>/dev/null || break
    sleep 0.1 &
    wait "$!"
  done
  wait "$child" 2>/dev/null; code=$?  # the shell still has the exit code if a signal ended the last wait
  child=0
  ((killer == 0)) || { kill -s KILL -- "-$killer"; wait "$killer"; } 2>/dev/null
  killer=0
}
for signal in TERM INT USR1 USR2 HUP; do
  # shellcheck disable=SC2064
  trap "forward $signal" "$signal"
done
set -m  # the command in its own process group: Ctrl-C reaches it through us, once

stalled=0 attempt=0 wait_ms=$delay died='' first=$(committed_step)
((first >= 0)) || first=0
while :; do
  before=$(committed_step)
  rm -f "$run_dir/outcome.json"
  metrics=$(last_metrics)
  "$@" &
  command=$!
  watcher=0
  if [[ -n $died ]]; then
    (
      trap - TERM INT USR1 USR2 HUP
      until has_new_step; do sleep 0.1; done
      say "restart $attempt: first new step $(in_seconds $(($(now_ms) - died))) s after the end of the last attempt"
    ) &
    watcher=$!
  fi
  wait_for "$command"
  died=$(now_ms)
  if ((watcher > 0)); then
    # If there is a new step, the watcher is about to report it and exit.
    has_new_step || kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
  fi

  # A launcher may have changed the exit code; outcome.json has the original.
  told=$(of_outcome exit_code)
  [[ -n $told ]] && code=$told
  what=$(of_outcome what)
  # srun may exit with 0 although it could not start the tasks; a finished run leaves an outcome.json.
  if ((code == 0)) && [[ $launcher && ! -e $run_dir/outcome.json && ! -e $run_dir/evaluation/outcome.json ]]; then
    code=70 what="$launcher ended with 0, but no run has left $run_dir/outcome.json"
  fi
  step=$(committed_step)
  if ((code == 0)); then rm -f "$run_dir/requeues"; exit 0; fi
  say "attempt $((attempt + 1)) ended with $code${what:+: $what}"
  if ((code == 75)) && [[ -n ${SLURM_JOB_ID-}${PBS_JOBID-} ]]; then requeue; fi
  if ((asked)); then exit "$code"; fi
  case $code in
    64 | 65 | 93) say "a restart would not help"; exit "$code" ;;
  esac
  if ((step > before)); then
    stalled=0 wait_ms=$delay
  elif (((stalled += attempt > 0) >= restarts)); then  # attempt 0 is not a restart
    say "$stalled restart$( ((stalled == 1)) || echo s) in a row without a new committed step$(
      ((step < 0)) || echo " (the last is $step)"): given up"
    exit 93
  fi
  attempt=$((attempt + 1))
  if ((code != 75)); then
    last=$code
    sleep "$(in_seconds "$wait_ms")" &  # in the background, so that signals are handled
    wait_for "$!"
    ((asked)) && exit "$last"
    ((step > before)) || wait_ms=$((wait_ms > 30000 ? 60000 : wait_ms * 2))
  fi
  say "restart $attempt from step $((step < 0 ? 0 : step))"
done
