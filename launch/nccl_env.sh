#!/usr/bin/env bash
# Runs a command with NCCL's variables for this node's network cards, found in /sys; variables already set are kept.
# Rank 0 prints what is set and why, as "nccl_env: …" on standard error; without COMMAND, that is all.
#   launch/nccl_env.sh [COMMAND…]        srun … launch/nccl_env.sh build/trivet train RUN.yaml
# If every GPU has a card below its PCIe switch (rails: GPU k of every node uses card k), those cards are chosen;
# otherwise the active cards with the highest rate. Other settings depend on the fabric, not on the node
# (NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_SL, NCCL_TOPO_FILE): see docs/clusters.md.
# Needs bash 4 or later and GNU coreutils. TRIVET_SYS is the folder to read instead of /sys.
set -uo pipefail
case ${1-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;; esac

sys=${TRIVET_SYS:-/sys}
rank=${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}
say() { ((rank > 0)) || echo "nccl_env: $*" >&2; }
content() { [[ -r $1 ]] && read -r REPLY <"$1" || REPLY=''; }
give() {  # VARIABLE VALUE WHY
  if [[ -v $1 ]]; then
    say "$1=${!1} is set by you and kept (otherwise $2)"
  else
    export "$1=$2"
    say "$1=$2: $3"
  fi
}
# The length of the PCIe path that two devices share, from the CPU: 1 is a root complex, 2 or more a switch.
shared() {
  local -a one other
  IFS=/ read -ra one <<<"${1##*/devices/}"
  IFS=/ read -ra other <<<"${2##*/devices/}"
  REPLY=0
  while [[ ${one[REPLY]-} && ${one[REPLY]} == "${other[REPLY]-}" ]]; do REPLY=$((REPLY + 1)); done
}

gpus=()
for device in "$sys"/bus/pci/devices/*; do
  content "$device/vendor"
  [[ $REPLY == 0x10de ]] || continue
  content "$device/class"
  [[ $REPLY == 0x03* ]] && gpus+=("$(realpath "$device")")
done

# Active ports: NAME:PORT, and for each its device path, rate (Gbit/s) and kind.
ports=()
declare -A place rate kind
for port in "$sys"/class/infiniband/*/ports/*; do
  content "$port/state"
  [[ $REPLY ]] || continue
  card=${port%/ports/*}
  name=${card##*/}:${port##*/}
  if [[ $REPLY != *ACTIVE* ]]; then
    say "$name is left out: its state is \"$REPLY\""
    continue
  fi
  ports+=("$name")
  place[$name]=$(realpath "$card/device")
  content "$port/rate"; rate[$name]=${REPLY%%[. ]*}
  content "$port/link_layer"; kind[$name]=$REPLY
done
run() {
  (($#)) || exit 0
  exec "$@"
}
say "${#gpus[@]} GPUs and ${#ports[@]} active ports of network cards in this node"
if ((${#gpus[@]} == 0 || ${#ports[@]} == 0)); then
  say "nothing to set"
  run "$@"
fi

# A rail for each GPU: the nearest card below the GPU's switch; of several, the fastest, if possible one not yet taken.
declare -A taken
rails=()
nearest() {  # GPU [shared]: sets REPLY; empty: none
  local best='' most=1 name
  for name in "${ports[@]}"; do
    [[ ${taken[$name]-} && ! ${2-} ]] && continue
    shared "$1" "${place[$name]}"
    if ((REPLY > most || (REPLY == most && most > 1 && rate[$name] > rate[$best]))); then best=$name most=$REPLY; fi
  done
  REPLY=$best
}
for gpu in "${gpus[@]}"; do
  nearest "$gpu"
  [[ $REPLY ]] || nearest "$gpu" shared
  [[ $REPLY ]] || { rails=(); break; }
  [[ ${taken[$REPLY]-} ]] || rails+=("$REPLY")
  taken[$REPLY]=1
done
if ((${#rails[@]})); then
  chosen=("${rails[@]}")
  why="the cards below the GPUs' PCIe switches, in the GPUs' order"
else
  top=0 chosen=()
  for name in "${ports[@]}"; do ((rate[$name] > top)) && top=${rate[$name]}; done
  for name in "${ports[@]}"; do ((rate[$name] == top)) && chosen+=("$name"); done
  why="the active ports of the highest rate, $top Gbit/s, as not every GPU has a card below its PCIe switch"
fi
for name in "${ports[@]}"; do
  [[ " ${chosen[*]} " == *" $name "* ]] || say "$name (${kind[$name]}, ${rate[$name]} Gbit/s) is left to others: storage, management"
done
list=$(IFS=,; echo "${chosen[*]}")
give NCCL_IB_HCA "=$list" "$why; \"=\" means these names, mlx5_1 would be mlx5_10, too"
if ((${#rails[@]} > 1)); then
  give NCCL_CROSS_NIC 0 "a ring stays on its rail: card k of one node talks to card k of the next"
  give NCCL_PXN_DISABLE 0 "data for another rail goes by NVLink to the GPU that is on it, and not across the spine"
fi

roce=() class=''
for name in "${chosen[@]}"; do [[ ${kind[$name]} == Ethernet ]] && roce+=("$name"); done
if ((${#roce[@]})); then
  for name in "${roce[@]}"; do
    content "$sys/class/infiniband/${name%:*}/tc/${name#*:}/traffic_class"
    [[ $REPLY =~ ([0-9]+)$ ]] && REPLY=${BASH_REMATCH[1]} || REPLY='none'
    [[ $class && $class != "$REPLY" ]] && class='different' && break
    class=$REPLY
  done
  if [[ $class =~ ^[0-9]+$ ]]; then
    give NCCL_IB_TC "$class" "RoCE: the traffic class that these cards are configured for (their tc/…/traffic_class)"
  elif [[ ! -v NCCL_IB_TC ]]; then
    say "NCCL_IB_TC is not set: the cards do not name a single traffic class for RoCE ($class); without the fabric's lossless one" \
      "(often 106, DSCP 26) packets are dropped under load: ask who runs it"
  fi
fi

if [[ -d $sys/module/nvidia_peermem ]]; then
  say "GPUDirect RDMA: nvidia_peermem is loaded"
else
  say "GPUDirect RDMA: nvidia_peermem is not loaded; it needs DMA-BUF then (open kernel modules of the driver, Linux 5.12)"
fi
say "tensor_model_parallel_size should divide ${#gpus[@]}: its ranks are neighbours and stay on NVLink inside a node"
run "$@"
