#!/usr/bin/env bash
# Trains on the GPUs of this machine or of several machines, with one MPI rank per GPU.
#   launch/mpirun.sh [--gpus G] [--hosts A,B,…] RUN.yaml [ARGUMENT OF trivet train…]
#     --gpus    GPUs per machine [as many as nvidia-smi shows here]
#     --hosts   machines reachable by ssh, with Trivet and the data at the same paths [this one]
# TRIVET names the program [build/trivet, or else the installed one], built with MPI, CUDA and NCCL. Restarts: launch/supervise.sh --run-dir DIR -- launch/mpirun.sh …
# To stop it with a checkpoint, send SIGUSR1 to mpirun, which passes it on; after SIGTERM, mpirun gives the ranks only a few seconds.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

gpus='' hosts=localhost
while [[ ${1-} == --* ]]; do
  [[ $1 == --gpus || $1 == --hosts ]] || usage "unknown argument $1"
  (($# >= 2)) || usage "$1 needs a value"
  case $1 in
    --gpus) gpus=$2 ;;
    --hosts) hosts=$2 ;;
  esac
  shift 2
done
(($#)) || usage "RUN.yaml is missing"
: "${gpus:=$(nvidia-smi -L | wc -l)}"
[[ $gpus =~ ^[1-9][0-9]*$ ]] || usage "--gpus: found \"$gpus\", expected a number of GPUs"
run=$1
shift

# Ranks 0 to G-1 on the first machine, and so on. With parallel.order tp-dp-pp, the default, consecutive ranks are
# tensor-parallel peers, which talk the most: they share a machine if tensor_model_parallel_size divides G. Next
# come data-parallel replicas; pipeline stages, which talk the least, are farthest apart.
machines=${hosts//,/ }
read -ra names <<<"$machines"
slots=$(printf "%s:$gpus," "${names[@]}")
arguments=(-np $((gpus * ${#names[@]})) --host "${slots%,}" --map-by slot --rank-by slot --bind-to none)
for name in LD_LIBRARY_PATH TRIVET_END_TIME PBS_JOBID $(compgen -e NCCL_ || true); do
  [[ -v $name ]] && arguments+=(-x "$name")
done
trivet=$root/build/trivet
[[ -x $trivet ]] || trivet=trivet
# nccl_env.sh finds the network cards of each machine. cuda rather than auto: a broken driver is then an error, not a slow run. Your own --set comes later and wins.
exec mpirun "${arguments[@]}" "$root/launch/nccl_env.sh" "${TRIVET:-$trivet}" train "$run" --set device.kind=cuda "$@"
