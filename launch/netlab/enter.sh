#!/usr/bin/env bash
# Runs a shell command on a host of the netlab: in its network namespace, under its own host name, on its cores. Open MPI
# calls it instead of ssh (plm_rsh_agent).
#   enter.sh ADDRESS COMMAND…      ADDRESS: the host's, as netlab.sh numbers them
set -euo pipefail
host=$((${1##*.} - 1))
shift
read -ra cores <<<"$TRIVET_NETLAB_CORES"
export TRIVET_NETLAB_HOST="$TRIVET_NETLAB-$host" TRIVET_NETLAB_COMMAND="$*"
time=()
[[ ${TRIVET_NETLAB_CLOCK:-} != "$host":* ]] || time=(--time --monotonic "${TRIVET_NETLAB_CLOCK#*:}")
exec ip netns exec "$TRIVET_NETLAB_HOST" taskset -c "${cores[$host]}" unshare --uts "${time[@]}" \
  bash -c 'hostname "$TRIVET_NETLAB_HOST" && eval "$TRIVET_NETLAB_COMMAND"'
