#!/usr/bin/env bash
# launch/slurm under a real Slurm: Debian's, installed if it is missing, in a cluster whose only node is this machine.
# The node pretends to have eight cores and eight GPUs, which are CPUs to Trivet. Takes about six minutes.
#   tests/slurm/run.sh TRIVET [NAME…]     NAME: only these checks, e.g. array; --list shows them
# Prints one line per check, "passed" or "failed", then "N passed, N failed"; ends with 1 if any failed. Run as root, on
# a machine without a running Slurm; it leaves only the packages behind. KEEP=1 keeps the folder even if all passed.
set -uo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../launch/setup.sh"
(($#)) || usage "TRIVET is missing"
TRIVET=$(realpath "$1")
export TRIVET
shift
((EUID == 0)) || usage "only root can start jobs for others: run it as root"

all=(trains signal early short cancel slow_save killed stalled wrong array fills templates)
[[ ${1-} != --list ]] || { echo "${all[*]}"; exit; }
names=("$@")
(($#)) || names=("${all[@]}")
for name in "${names[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || usage "unknown check $name, expected one of ${all[*]}"
done

packages+=(slurm-wlm munge slurmdbd mariadb-server)
install_packages || exit

dir=$(mktemp -d)
passed=0 failed=0
check() {  # WHAT COMMAND…
  local what=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
    printf '%4d s  passed  %s\n' $SECONDS "$what"
  else
    failed=$((failed + 1))
    printf '%4d s  FAILED  %s\n' $SECONDS "$what"
  fi
}

# Waits for a condition.
within() {  # SECONDS COMMAND…
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { echo "       not within the time: $*" >&2; return 1; }
    sleep 0.2
  done
}

# ---- the cluster, with accounts in a database

export SLURM_CONF=$dir/slurm.conf
node=$(hostname -s) port=$((20000 + RANDOM % 10000))
finish() {
  local file
  # Ends the jobs first: their processes outlive the daemons.
  scancel --user=root 2>/dev/null
  no_job() { [[ ! $(timeout 5 squeue --noheader 2>/dev/null) ]]; }
  within 30 no_job
  for file in slurmd slurmctld slurmdbd mariadb munged; do
    [[ -f $dir/$file.pid ]] && kill "$(<"$dir/$file.pid")"
  done
  no_daemon() { [[ ! -f $dir/slurmctld.pid && ! -f $dir/slurmdbd.pid && ! -f $dir/mariadb.pid ]]; }
  within 10 no_daemon
  if ((failed == 0)) && [[ ! ${KEEP-} ]]; then rm -rf "$dir"; else echo "the logs are in $dir"; fi
}
trap finish EXIT
mkdir "$dir/tmp" "$dir/mariadb" "$dir/state" "$dir/spool" "$dir/munge"
chmod 755 "$dir"
chmod 700 "$dir/munge"
cat >"$SLURM_CONF" <<END
ClusterName=trivet
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$dir/munge/socket,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=100000
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass=$dir/munge/socket
AccountingStoragePort=$((port + 2))
KillWait=5
TmpFS=$dir/tmp
GresTypes=gpu
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 Gres=gpu:8 State=UNKNOWN
NodeName=big[1-2] NodeAddr=127.0.0.1 Port=$((port + 3)) Sockets=2 CoresPerSocket=32 RealMemory=4000 Gres=gpu:8 State=CLOUD
PartitionName=here Nodes=$node Default=YES State=UP
PartitionName=big Nodes=big[1-2] State=UP
END
echo 'Name=gpu File=/dev/tty[0-7]' >"$dir/gres.conf"
head -c 1024 /dev/urandom >"$dir/munge/key"
chmod 600 "$dir/munge/key"
munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munged.pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --force 2>"$dir/munged.log"
cat >"$dir/slurmdbd.conf" <<END
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((port + 2))
SlurmUser=root
AuthInfo=socket=$dir/munge/socket
LogFile=$dir/slurmdbd.log
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
END
chmod 600 "$dir/slurmdbd.conf"
mariadb-install-db --no-defaults --user=root --datadir="$dir/mariadb" >"$dir/mariadb.log" 2>&1
# Slurm's library looks for the server at Debian's socket; only slurmdbd is pointed to this server's socket.
mariadbd --no-defaults --user=root --datadir="$dir/mariadb" --socket="$dir/mariadb/socket" --pid-file="$dir/mariadb.pid" \
  --skip-networking >>"$dir/mariadb.log" 2>&1 &
within 30 test -S "$dir/mariadb/socket"
MYSQL_UNIX_PORT=$dir/mariadb/socket slurmdbd
within 30 sacctmgr --immediate --quiet add cluster trivet >"$dir/sacctmgr.log" 2>&1
slurmctld -c && slurmd
idle() { [[ $(timeout 5 sinfo --noheader --partition=here --format=%t 2>/dev/null) == idle ]]; }
within 30 idle || { timeout 5 sinfo >&2; tail -n 20 "$dir"/slurm*.log >&2; echo "the node is not idle" >&2; exit 70; }

# ---- runs

cd "$root" || exit 74
"$TRIVET" data prepare --input docs/faults.md --document paragraph --tokenizer bytes --output "$dir/text" >/dev/null || exit
cat >"$dir/run.yaml" <<END
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, hidden_dropout: 0.1}
parallel: {pipeline_model_parallel_size: 1, data_parallel_sharding_strategy: optim}
batch: {micro_batch_size: 2, global_batch_size: 32}
data: {path: $dir/text}
train: {train_iters: 1000}
checkpoint: {save_interval: 100}
comm: {timeout_s: 60}
device: {peak_tflops: 1, threads_per_rank: 1}
END
# Cancels the job, which must not be requeued.
cancel_job() {
  scancel "$job"
  within 60 is JobState 'CANCELLED|COMPLETED'
}
# Submits launch/slurm/train.sbatch for RUN as $job; options before "--" go to sbatch, those after it to trivet train.
submit() {  # RUN [OPTION…] [-- ARGUMENT…]
  local run=$dir/$1 options=()
  shift
  while (($#)) && [[ $1 != -- ]]; do options+=("$1"); shift; done
  (($#)) && shift
  job=$(sbatch --parsable --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 --time=10 \
    --output="$run-%j.log" "${options[@]}" launch/slurm/train.sbatch "$dir/run.yaml" "$run" \
    --set device.kind=cpu "$@")
}
losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$dir/$1/metrics.jsonl" 2>/dev/null; }
steps() { losses "$1" | wc -l; }
last_step() { losses "$1" | tail -n 1 | cut -d ' ' -f 1; }
saved() { sed 's/^step-0*//' "$dir/$1/checkpoints/latest" 2>/dev/null; }
of_job() { scontrol show job --oneliner "${2-$job}" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }
at_step() { (($(steps "$1") >= $2)); }
is() { [[ $(of_job "$1" "${3-$job}") =~ ^($2)$ ]]; }
requeued() { (($(of_job Restarts "${2-$job}") == $1)); }
ended() { is JobState 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|PREEMPTED' "$@" ; }
has_ended() { within 120 ended; }
# Compares the states of the job's attempts in the accounting database, where they appear with a delay.
accounts() {  # TEXT
  account() {
    found=$(sacct --duplicates --allocations --noheader --parsable2 --format=State --jobs="$job" | sed 's/ by .*//' | tr '\n' ' ')
    [[ ${found% } == "$1" ]]
  }
  local found
  within 10 account "$1" || { echo "       accounts: found \"${found% }\", expected \"$1\"" >&2; return 1; }
}
same_losses() {  # RUN: each step once, with losses bit-identical to those of a run without Slurm
  [[ -s $dir/reference.losses && $(losses "$1") == "$(<"$dir/reference.losses")" ]]
}
verified() { "$TRIVET" checkpoint verify "$dir/$1" >"$dir/verify.log" 2>&1 || { cat "$dir/verify.log"; return 1; }; }

"$TRIVET" train "$dir/run.yaml" --ranks 2 --set device.kind=cpu --set train.run_dir="$dir/reference" >"$dir/reference.log" 2>&1 ||
  { tail "$dir/reference.log"; exit 70; }
losses reference >"$dir/reference.losses"

trains() {
  submit trains --ntasks-per-node=4 --gpus-per-node=4 -- --set parallel.tensor_model_parallel_size=2 \
    --set train.train_iters=50
  check "four tasks train" has_ended
  check "  all 50 steps" test "$(steps trains)" = 50
  check "  as one job of four ranks" grep -q 'tensor 2.*data 2' "$dir/trains-$job.log"
  check "  COMPLETED in the accounts" accounts COMPLETED
}
signal() {
  submit signal
  within 60 at_step signal 150
  scancel --signal=USR1 "$job"
  check "a signal to the ranks saves, 75 requeues" within 60 requeued 1
  check "  at the step that it had reached" test "$(saved signal)" = "$(last_step signal)"
  check "  the requeued job ends" has_ended
  check "  with the losses of one run, bit for bit" same_losses signal
  check "  REQUEUED and COMPLETED in the accounts" accounts "REQUEUED COMPLETED"
}
early() {
  submit early --time=2 --signal=USR1@60 -- --set train.train_iters=1000000 --set optimizer.lr_decay_iters=1000
  check "sbatch --signal=USR1@60: Slurm signals before the end, 75 requeues" within 130 requeued 1
  check "  saved, no step lost" test "$(saved early)" = "$(last_step early)"
  check "  and scancel ends it" cancel_job
}
short() {
  submit short --time=1 -- --set train.train_iters=1000000 --set optimizer.lr_decay_iters=1000
  within 30 is JobState RUNNING
  local begin=$SECONDS
  check "a job of one minute, shorter than any lead: saves and requeues" within 70 requeued 1
  local lasted=$((SECONDS - begin))
  check "  after it has trained for most of it: $lasted s" test "$lasted" -ge 45
  check "  saved, no step lost" test "$(saved short)" = "$(last_step short)"
  check "  trains on in the next minute" within 30 at_step short $(($(saved short) + 10))
  check "  and scancel ends it" cancel_job
}
cancel() {
  submit cancel -- --set train.train_iters=1000000
  within 60 at_step cancel 150
  scancel "$job"
  check "scancel ends the job" has_ended
  check "  saved, no step lost: step $(saved cancel)" test "$(saved cancel)" = "$(last_step cancel)"
  check "  CANCELLED in the accounts, and not requeued" accounts CANCELLED
}
slow_save() {
  g++ -shared -fPIC -o "$dir/slow_sync.so" tests/slurm/slow_sync.cc || return
  # The first save, of step 100, is quick; the one requested by scancel takes longer than KillWait.
  cat >"$dir/slow" <<END
#!/usr/bin/env bash
exec env LD_PRELOAD="$dir/slow_sync.so" SLOW_SYNC_FILE="$dir/is_slow" "$TRIVET" "\$@"
END
  chmod +x "$dir/slow"
  TRIVET=$dir/slow submit slow_save
  within 60 at_step slow_save 150
  touch "$dir/is_slow"
  scancel "$job"
  check "scancel while a save takes 40 s, KillWait 5 s: the job ends" within 60 ended
  check "  the latest checkpoint is of step 100" test "$(saved slow_save)" = 100
  check "  and whole" verified slow_save
  rm "$dir/is_slow"
  submit slow_save
  check "  the next job goes on from it" has_ended
  check "  with the losses of one run" same_losses slow_save
}
killed() {
  submit killed
  within 60 at_step killed 150
  pkill -9 -n -f "^$TRIVET train .*run_dir=$dir/killed "
  check "a killed task ends the step and is started again in its job" has_ended
  check "  by the supervisor, from step 100" grep -q 'restart 1 from step 100' "$dir/killed-$job.log"
  check "  with the losses of one run" same_losses killed
  check "  COMPLETED once in the accounts" accounts COMPLETED
}
stalled() {
  submit stalled -- --set train.exit_duration_in_mins=1e-9
  check "jobs that end after a step each are not requeued for ever" has_ended
  check "  the third ends with 93" is ExitCode 93:0
  check "  FAILED in the accounts" accounts "REQUEUED REQUEUED FAILED"
  check "  the log says what to do" grep -q 'give each more time' "$dir/stalled-$job.log"
}
wrong() {
  submit wrong -- --set optimizer.lr=-1
  check "a mistake in the configuration ends the job" has_ended
  check "  with 64, FAILED, once" accounts FAILED
  check "  exit code 64" is ExitCode 64:0
}
array() {
  submit array --array=1-3 --ntasks-per-node=1 --gpus-per-node=1 --output="$dir/array-%a.log"
  local element number
  within 60 at_step array/1 10 && within 60 at_step array/2 10 && within 60 at_step array/3 10
  # The element whose job id is the array's own: `scontrol requeue NUMBER` would requeue all elements.
  for number in 1 2 3; do [[ $(of_job JobId "${job}_$number") == "$job" ]] && element=$number; done
  scancel --signal=USR1 "${job}_$element"
  check "element ${element-?} of a job array, whose number is the array's, requeues itself" within 60 requeued 1 "${job}_$element"
  for number in 1 2 3; do
    ((number == element)) || check "  alone: element $number goes on" requeued 0 "${job}_$number"
  done
  for number in 1 2 3; do
    check "  element $number ends" within 120 is JobState COMPLETED "${job}_$number"
    check "  element $number has all its steps" test "$(steps "array/$number")" = 1000
  done
}
fills() {
  submit fills --array=0-7 --ntasks-per-node=1 --gpus-per-node=1 --output="$dir/fills-%a.log" -- \
    --set train.train_iters=1000000
  all_run() { [[ $(squeue --noheader --jobs="$job" --states=RUNNING --format=%i | wc -l) == 8 ]]; }
  check "eight runs of one GPU each fill the node" within 60 all_run
  local number
  for number in {0..7}; do within 60 at_step "fills/$number" 5; done
  check "  every one with a run directory and a seed of its own" test \
    "$(cat "$dir"/fills/*/config.resolved.yaml | grep -E '^  seed: 12(3[4-9]|4[01])$' | sort -u | wc -l)" = 8
  check "  so that no two have the same first loss" test \
    "$(for number in {0..7}; do losses "fills/$number" | head -n 1; done | sort -u | wc -l)" = 8
  scancel "$job"
}
templates() {
  check "the template as it is passes sbatch --test-only" sbatch --test-only --partition=big \
    launch/slurm/train.sbatch configs/gpt3_1b3.yaml "$dir/unused"
}

for name in "${names[@]}"; do "$name"; done
echo "$passed passed, $failed failed"
((failed == 0))
