#!/usr/bin/env bash
# The job scripts of launch/slurm and launch/pbs, and launch/wait_for_hosts.sh, with stand-ins for scheduler commands:
# when the run must end, what is requeued, and the directives. tests/slurm/run.sh tests the same under a real Slurm.
#   clusters_test.sh CHECKOUT
set -uo pipefail
checkout=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
ln -s "$checkout/launch" launch
mkdir bin
export PATH=$folder/bin:$PATH TRIVET=trivet CODE=0 SLURM_SUBMIT_DIR=$folder PBS_O_WORKDIR=$folder
unset "${!OMPI_MCA_@}" "${!NCCL_@}" TRIVET_END_TIME INDEX PBS_ARRAY_INDEX SLURM_ARRAY_TASK_ID SLURM_ARRAY_JOB_ID
failed=0
stand_in() { { echo '#!/usr/bin/env bash'; cat; } >"bin/$1"; chmod +x "bin/$1"; }
# Stands in for the ranks' launcher: records its arguments and the end time, saves a step, and ends as instructed.
stand_in srun <<'END'
echo "$(basename "$0") $*" >>calls
echo "${TRIVET_END_TIME-none}" >end
run_dir=$(sed 's/.*train.run_dir=\([^ ]*\).*/\1/' <<<"$*")
mkdir -p "$run_dir/checkpoints" && printf 'step-%08d\n' 9 >"$run_dir/checkpoints/latest"
printf '{\n "status": "told",\n "exit_code": %s,\n "what": ""\n}\n' "$CODE" >"$run_dir/outcome.json"
if [[ ${CANCEL-} ]]; then  # ends the job script, which started supervise.sh
  read -ra stat <"/proc/$PPID/stat"
  kill -TERM "${stat[3]}"
fi
exit "$CODE"
END
cp bin/srun bin/mpirun
stand_in squeue <<'END'
echo "squeue $*" >>calls
echo "$JOB_END"
END
stand_in scontrol <<'END'
[[ $1 != show ]] || { echo "RequeueExit             = ${REQUEUE_EXIT:-(null)}"; exit; }
echo "scontrol $*" >>calls
END
stand_in qstat <<'END'
printf 'Job Id: %s\n    Resource_List.select = 2:ncpus=4:mpip\n\trocs=2:ngpus=2\n    Resource_List.walltime = %s\n' "$2" "$WALLTIME"
END
# Runs a script as PBS would, if its directives are valid; a submission from within a job is only recorded.
stand_in qsub <<'END'
if [[ ${PBS_JOBID-} ]]; then
  echo "qsub $* with RUN_DIR=${RUN_DIR-} INDEX=${INDEX-}" >>calls
  exit
fi
script=${!#}
awk '!/^#/ && NF { late = 1 } /^#PBS/ && late { exit 1 }' "$script" || { echo "a directive behind the first command"; exit 2; }
while read -r _ option value more; do
  case $option in
    -N) [[ $value =~ ^[A-Za-z][A-Za-z0-9_-]{0,229}$ ]] ;;
    -l) [[ $value =~ ^(select=[1-9][0-9]*(:(ncpus|mpiprocs|ngpus|ompthreads)=[1-9][0-9]*|:mem=[1-9][0-9]*[gmt]b)+|place=(free|pack|scatter)(:excl)?|walltime=[0-9]+:[0-5][0-9]:[0-5][0-9])$ ]] ;;
    -j) [[ $value =~ ^(oe|eo|n)$ ]] ;;
    -r) [[ $value =~ ^[yn]$ ]] ;;
    *) false ;;
  esac && [[ -z $more ]] || { echo "not a directive of PBS: $option $value $more"; exit 2; }
done < <(grep '^#PBS' "$script")
[[ $1 == -v ]] || exit 2
IFS=, read -ra variables <<<"$2"
printf 'node%d\n' 1 1 2 2 >nodefile
exec env "${variables[@]}" PBS_JOBID=12.server PBS_NODEFILE=nodefile bash "$script"
END

begin() { rm -rf calls end runs; touch calls; }
# Checks the last job's exit code, and the patterns that must match the recorded calls, or must not ("-PATTERN").
expect() {  # WHAT CODE [PATTERN…]
  local found=$? what=$1 code=$2 pattern
  for pattern in "${@:3}"; do
    if [[ $pattern == -* ]]; then ! grep -q -- "${pattern#-}" calls; else grep -q -- "$pattern" calls; fi ||
      { echo "$what: expected \"$pattern\" in:"; cat calls; failed=1; }
  done
  ((found == code)) || { echo "$what: exit $found, expected $code:"; cat out; failed=1; }
}
ends_in() {  # WHAT SECONDS: from now
  local found
  found=$(($(<end) - $(date +%s)))
  ((found <= $2 && found >= $2 - 5)) || { echo "$1: TRIVET_END_TIME is in $found s, expected $2"; failed=1; }
}
sbatch() { begin; SLURM_JOB_ID=12 bash launch/slurm/train.sbatch run.yaml runs/a --set optimizer.lr=1 >out 2>&1; }
in_seconds() { date --date="$1 seconds" +%Y-%m-%dT%H:%M:%S; }

JOB_END=$(in_seconds 3600); export JOB_END
sbatch
expect 'a job' 0 'srun --mpi=pmix .*launch/nccl_env.sh trivet train run.yaml --set train.run_dir=runs/a .*--set optimizer.lr=1$' \
  '-scontrol' '-seed'
ends_in 'a job of an hour' 3540
CODE=75 sbatch
expect 'saved' 75 'scontrol requeue 12$'
REQUEUE_EXIT=75,76 CODE=75 sbatch
expect 'saved, and Slurm requeues by itself' 75 '-scontrol'
CANCEL=1 CODE=75 sbatch
expect 'saved, as scancel asked' 75 'srun' '-scontrol'
for code in 64 65 93; do CODE=$code sbatch; expect "no requeue after $code" $code '-scontrol'; done
# An element's own SLURM_JOB_ID may be the array's, so every command names the element.
SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=3 CODE=75 sbatch
expect 'an element of a job array' 75 'scontrol requeue 12_3$' 'squeue .*12_3' 'run_dir=runs/a/3 ' 'train.seed=1237 '
JOB_END=$(in_seconds 60) sbatch
ends_in 'a job of a minute' 54
for JOB_END in '' NONE; do
  sbatch
  [[ $(<end) == none ]] || { echo "a job without an end: TRIVET_END_TIME is $(<end)"; failed=1; }
done

job_of_pbs() { begin; qsub -v "RUN=run.yaml,RUN_DIR=runs/b$1" launch/pbs/train.pbs >out 2>&1; }
export WALLTIME=01:00:00
job_of_pbs ',ARGUMENTS=--set optimizer.lr=1'
expect 'a job of PBS' 0 'mpirun -np 4 --host node1:2,node2:2 .* train run.yaml .*run_dir=runs/b --set optimizer.lr=1$' \
  '-qsub' ' -x TRIVET_END_TIME '
ends_in 'a job of PBS of an hour' 3540
CODE=75 job_of_pbs ''
expect 'PBS: saved' 75 'qsub -W depend=afterany:12.server -l select=2:ncpus=4:mpiprocs=2:ngpus=2 -l walltime=01:00:00 -v RUN,RUN_DIR,ARGUMENTS,INDEX launch/pbs/train.pbs'
CANCEL=1 CODE=75 job_of_pbs ''
expect 'PBS: saved, as qdel asked' 75 'mpirun' '-qsub'
CODE=93 job_of_pbs ''
expect 'PBS: no other job after 93' 93 '-qsub'
PBS_ARRAY_INDEX=5 job_of_pbs ''
expect 'PBS: an element' 0 'run_dir=runs/b/5 ' 'train.seed=1239'
PBS_ARRAY_INDEX=5 CODE=75 job_of_pbs ''
expect 'PBS: an element, saved: its next job is of the same element' 75 'qsub .* with RUN_DIR=runs/b INDEX=5$'
WALLTIME=00:30:00 job_of_pbs ''
ends_in 'a job of PBS of half an hour' 1740
WALLTIME='' job_of_pbs ''
ends_in "PBS: the walltime of the script, where qstat has none" $((24 * 3600 - 60))
begin; qsub -v RUN=run.yaml launch/pbs/train.pbs >out 2>&1
expect 'PBS: no RUN_DIR' 64 '-mpirun'
sed 's/^#PBS -r y/#PBS -R y/' launch/pbs/train.pbs >wrong.pbs
begin; qsub -v RUN=run.yaml,RUN_DIR=runs/b wrong.pbs >out 2>&1
expect 'the stand-in finds a wrong directive' 2

begin
NCCL_SOCKET_IFNAME=eth2 NCCL_ALGO=Ring NCCL_IB_TC=1 LD_LIBRARY_PATH=/lib PBS_JOBID=12 TRIVET_END_TIME=5 \
  launch/mpirun.sh --gpus 2 --hosts a,b run.yaml >out 2>&1
expect 'every variable of NCCL reaches the other hosts' 0 'mpirun -np 4 --host a:2,b:2 ' ' -x NCCL_SOCKET_IFNAME ' \
  ' -x NCCL_ALGO ' ' -x NCCL_IB_TC ' ' -x LD_LIBRARY_PATH ' ' -x PBS_JOBID ' ' -x TRIVET_END_TIME '

stand_in ssh <<'END'
while [[ $1 == -o ]]; do shift 2; done
echo "ssh $1" >>calls
[[ $1 == here* || ( $1 == late && -e it_is_there ) ]]
END
printf '%s\n' 'here-0.trivet.default.svc slots=8' '# a comment' 'late:8' >hosts
begin; (sleep 0.5; touch it_is_there) & launch/wait_for_hosts.sh --seconds 20 hosts sh -c 'exit 75' >out 2>&1
expect 'hosts of which one is late' 75 'ssh here-0.trivet.default.svc$' 'ssh late$'
printf '%s\n' 'lost-0 slots=8' 'lost-1 slots=8' >>hosts
begin; launch/wait_for_hosts.sh --seconds 0 hosts touch started >out 2>&1
expect 'a host that never answers' 69
grep -Eq 'does not reach lost-(0 lost-1|1 lost-0)$' out || { echo 'the lost hosts are not named:'; cat out; failed=1; }
[[ ! -e started ]] || { echo 'started without a host'; failed=1; }
launch/wait_for_hosts.sh hosts >out 2>&1
expect 'no command' 64
exit $failed
