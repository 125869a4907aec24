#!/usr/bin/env bash
# Waits until ssh reaches every host in a host file, then execs a command. After the time limit, exits with 69 and the
# names of the missing hosts, so that a restarted launcher does not use up its restarts while other hosts still start.
#   launch/wait_for_hosts.sh [--seconds N] HOSTFILE COMMAND…      N: for all hosts together [300]
# A line of HOSTFILE begins with the host's name, as mpirun and the MPI Operator write it (NAME slots=8, NAME:8).
set -uo pipefail
usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit "${1-0}"; }
wrong() { echo "wait_for_hosts: $1" >&2; usage 64 >&2; }
seconds=300
case ${1-} in
  -h | --help) usage ;;
  --seconds)
    seconds=${2-}
    [[ $seconds =~ ^[0-9]{1,6}$ ]] || wrong "--seconds: found \"$seconds\", expected a number"
    shift 2
    ;;
esac
(($# >= 2)) || wrong "HOSTFILE or COMMAND is missing"
[[ -r $1 ]] || wrong "$1: expected a host file that can be read"
mapfile -t hosts < <(sed -E 's/#.*//; s/^[[:space:]]+//; s/[[:space:]:].*//; /^$/d' "$1" | sort -u)
((${#hosts[@]})) || wrong "$1: expected a line for each host, found none"
shift
while :; do
  mapfile -t missing < <(
    for host in "${hosts[@]}"; do
      { timeout 10 ssh -o BatchMode=yes -o ConnectTimeout=5 "$host" true </dev/null &>/dev/null || echo "$host"; } &
    done
    wait
  )
  ((${#missing[@]})) || exec "$@"
  ((SECONDS < seconds)) || break
  hosts=("${missing[@]}")
  sleep 1
done
echo "wait_for_hosts: after $SECONDS s ssh still does not reach ${missing[*]}" >&2
exit 69
