#!/usr/bin/env bash
# launch/supervise.sh over a command that fails as instructed: what it restarts, when it stops, and with which code.
#   supervise_test.sh PATH-TO-SUPERVISE
set -uo pipefail
supervise=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failed=0

# Each attempt takes the first word of `plan`: CODE or CODE@STEP, the step that it commits before it ends. hang: runs
# until SIGTERM, then exits with 75. deaf: ignores SIGTERM. told:N: writes N to outcome.json and exits with 1.
cat >fake <<'FAKE'
#!/usr/bin/env bash
read -r word rest <plan
echo "$rest" >plan
echo x >>attempts
echo "{\"step\": 1, \"loss\": $$}" >>run/metrics.jsonl
if [[ $word == *@* ]]; then printf 'step-%08d\n' "${word#*@}" >run/checkpoints/latest; fi
code=${word%@*}
case $code in
  deaf) trap '' TERM; echo $$ >hanging; while :; do sleep 0.05; done ;;
  hang) trap 'exit 75' TERM; echo $$ >hanging; while :; do sleep 0.05; done ;;
  told:*) printf '{\n "status": "failed",\n "exit_code": %s,\n "what": "it is so"\n}\n' "${code#told:}" >run/outcome.json; exit 1 ;;
  kill) kill -9 $$ ;;
  *) exit "$code" ;;
esac
FAKE
chmod +x fake

# The supervisor does arithmetic without awk, which differs between systems.
mkdir bin
for name in awk mawk gawk; do printf '#!/bin/sh\necho "awk is used" >&2; exit 1\n' >bin/$name; chmod +x bin/$name; done
PATH=$PWD/bin:$PATH

keep=''  # if set, keeps the last call's run
expect() {  # WHAT CODE ATTEMPTS TEXT PLAN…
  local what=$1 code=$2 attempts=$3 text=$4
  shift 4
  [[ $keep ]] || rm -rf run
  rm -f attempts; mkdir -p run/checkpoints; echo "$*" >plan
  "$supervise" --run-dir run --restarts 2 --delay 0.05 -- ./fake >out 2>&1
  local found=$? tries
  tries=$(wc -l <attempts)
  if ((found != code || tries != attempts)) || { [[ -n $text ]] && ! grep -q -- "$text" out; } ||
    grep -Ev '^supervise: |^$' out; then  # it prints only its own messages
    echo "$what: exit $found (expected $code), $tries attempts (expected $attempts), text \"$text\" in:"; cat out
    failed=1
  fi
}

expect 'done at once'                     0 1 '' 0
expect 'restart after a failure'          0 2 'restart 1 from step 5' 70@5 0
expect 'restart after a death by signal'  0 2 'ended with 137' kill@5 0
expect 'time to the first new step'       0 2 'first new step [0-9.]* s after' 1@5 0
expect 'configuration is not tried again' 64 1 'would not help' 64
expect 'data is not tried again'          65 1 'would not help' 65
expect 'numbers are not tried again'      93 2 'would not help' 70@3 93
expect 'no progress'                      93 3 '2 restarts in a row without a new committed step: given up' 70 124 139 0
expect 'no progress after some'           93 3 '2 restarts in a row .* (the last is 4)' 70@4 124 139 0
expect 'progress in between'              0 5 '' 70 70 70@4 70 0
expect 'the outcome file counts'          93 1 'ended with 93: it is so' told:93
expect 'saved: again at once'             0 2 'ended with 75' 75@7 0
SLURM_JOB_ID=7 expect 'saved: the scheduler requeues' 75 1 'ended with 75' 75@7 0
PBS_JOBID=7.pbs expect 'saved: PBS requeues, too' 75 1 'ended with 75' 75@7 0
# Jobs that each end after one step would be requeued for ever; a job that gets further resets the count.
SLURM_JOB_ID=7 expect 'a job of one step' 75 1 'ended with 75' 75@1
keep=1
SLURM_JOB_ID=7 expect 'another job of one step' 93 1 '2 jobs in a row .* at most one new step (the last is 2)' 75@2
SLURM_JOB_ID=7 expect 'a job of one step: counted anew' 75 1 'ended with 75' 75@3
SLURM_JOB_ID=7 expect 'a job of three steps' 75 1 'ended with 75' 75@6
SLURM_JOB_ID=7 expect 'a job of a step, after progress' 75 1 'ended with 75' 75@7
echo garbage >run/requeues
SLURM_JOB_ID=7 expect 'a count that is none' 75 1 'ended with 75' 75@8
keep=''

# An outcome that an earlier job left says nothing about an attempt that died before it could write one.
rm -rf run; mkdir -p run/checkpoints
printf '{\n "status": "done",\n "exit_code": 0,\n "what": ""\n}\n' >run/outcome.json
keep=1
expect 'an outcome of an earlier job' 0 2 'ended with 70' 70@3 0
keep=''
# The delay doubles while there is no progress: 0.2, 0.4 and 0.8 s here, whatever the locale's decimal point.
rm -rf run attempts; mkdir -p run/checkpoints; echo 70 70 70 0 >plan
begin=$(date +%s%N)
LC_ALL=de_DE.UTF-8 "$supervise" --run-dir run --restarts 5 --delay 0.2 -- ./fake >out 2>&1
code=$? took=$((($(date +%s%N) - begin) / 1000000))
if ((code != 0 || took < 1400)); then echo "the delays: exit $code after $took ms, expected 0 after 1400"; cat out; failed=1; fi

# Starts the supervisor as $pid, with the command's plan and options; returns when the command runs.
begin() {  # PLAN [OPTION…] -- COMMAND
  rm -rf run attempts hanging; mkdir -p run/checkpoints; echo "$1" >plan
  "$supervise" --run-dir run "${@:2}" >out 2>&1 &
  pid=$!
  while [[ ! -s hanging ]] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
}
finish() {  # SIGNAL: sent to the supervisor, whose exit code becomes $code
  kill -"$1" "$pid"
  wait "$pid"
  code=$?
}

# A command that ignores the signal is killed in the end. While the command is stopped, the supervisor idles.
begin deaf --kill-after 0.3 -- ./fake
finish TERM
if ((code != 137)) || ! grep -q 'not ended 0.300 s after SIGTERM: killed' out || kill -9 "$(<hanging)" 2>/dev/null; then
  echo "a command without ears: exit $code, or it is left"; cat out; failed=1
fi
begin hang -- ./fake
kill -STOP "$(<hanging)"
sleep 1
read -ra stat <"/proc/$pid/stat"
kill -CONT "$(<hanging)"
finish TERM
if ((code != 75 || stat[13] + stat[14] > 50)); then  # in 1/100 s
  echo "a command that is stopped: exit $code, ${stat[13]}+${stat[14]} ticks"; cat out; failed=1
fi

# A signal is forwarded to the command, and nothing is started after it.
begin hang -- ./fake
finish TERM
if ((code != 75 || $(wc -l <attempts) != 1)); then echo "SIGTERM: exit $code"; cat out; failed=1; fi
# srun exits with 0 even if it started nothing.
printf '#!/bin/sh\nexit 0\n' >srun; chmod +x srun
rm -rf run
"$supervise" --run-dir run --restarts 1 --delay 0 -- ./srun >out 2>&1
code=$?
if ((code != 93)) || ! grep -q 'ended with 70: ./srun ended with 0, but no run' out; then echo "srun that starts nothing: exit $code"; cat out; failed=1; fi
# mpirun gets the signal that it forwards to its ranks.
sed "s/hang) trap 'exit 75' TERM/hang) trap 'exit 75' USR1/" fake >mpirun; chmod +x mpirun
begin hang -- ./mpirun
finish TERM
if ((code != 75)); then echo "SIGTERM to mpirun: exit $code"; cat out; failed=1; fi
# SIGHUP is forwarded, too: nothing runs on without its supervisor. (Under nohup it does: SIGHUP stays ignored.)
if ! ((16#$(sed -n 's/^SigIgn:[^0-9a-f]*//p' /proc/self/status) & 1)); then
  begin hang -- ./fake
  finish HUP
  if ((code != 129)) || kill -9 "$(<hanging)" 2>/dev/null; then echo "SIGHUP: exit $code, or the command is left"; failed=1; fi
fi

# A signal also ends the delay before a restart.
rm -rf run attempts; mkdir -p run/checkpoints; echo 70 0 >plan
"$supervise" --run-dir run --delay 1000000 -- ./fake >out 2>&1 &
pid=$!
while ! grep -q 'ended with 70' out && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
finish TERM
if ((code != 70 || $(wc -l <attempts) != 1)); then echo "SIGTERM in the delay: exit $code"; cat out; failed=1; fi
"$supervise" -- ./fake 2>/dev/null; (($? == 64)) || { echo 'usage'; failed=1; }
exit $failed
