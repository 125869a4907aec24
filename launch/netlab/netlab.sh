#!/usr/bin/env bash
# Runs MPI ranks over real rate-limited links on this machine: each rank has a host of its own, a network namespace with
# one cable to a common switch.
#
#   launch/netlab/netlab.sh --ranks 2 --gbps 1 [--delay-us 50] [--dry-run] -- build/trivet train RUN.yaml …
#
#   --ranks N      hosts, one rank each; the machine's cores are divided among them
#   --gbps X       rate of each cable, in both directions (a token bucket)
#   --delay-us D   delay of each cable towards the switch: half a round trip (needs the kernel's sch_netem)
#   --slow-link A-B:X   X Gbit/s between the hosts of ranks A and B (needs sch_htb and cls_u32)
#   --throttle R:P      the host of rank R runs for P % of each tenth of a second
#   --clock R:S         its steady clock is S seconds ahead (needs the kernel's time namespaces)
#   --dry-run      prints the commands it would run
#
# A host is the namespace trivet-PID-RANK with 10.77.0.RANK+1 on eth0; the switch is a bridge in trivet-PID-switch, so
# the machine's own network is not touched. Everything is removed at the end, even after a signal; the next netlab
# removes what a SIGKILL left behind. Needs root, iproute2 (ip, tc), util-linux (taskset, unshare) and Open MPI.
# Exits with the ranks' exit code.
set -euo pipefail

die() {
  echo "netlab: $1" >&2
  exit "${2:-64}"
}
usage="netlab.sh --ranks N --gbps X [--delay-us D] [--slow-link A-B:X] [--throttle R:P] [--clock R:S] [--dry-run] -- COMMAND…"

ranks='' gbps='' delay_us=0 slow_link='' throttle='' clock='' dry_run=''
while (($# > 0)); do
  case $1 in
    --ranks | --gbps | --delay-us | --slow-link | --throttle | --clock)
      (($# > 1)) || die "$1 needs a value; $usage"
      case $1 in
        --ranks) ranks=$2 ;;
        --gbps) gbps=$2 ;;
        --delay-us) delay_us=$2 ;;
        --slow-link) slow_link=$2 ;;
        --throttle) throttle=$2 ;;
        --clock) clock=$2 ;;
      esac
      shift 2
      ;;
    -h | --help) sed -n '2,/^[^#]/s/^#$\|^# //p' "${BASH_SOURCE[0]}" && exit 0 ;;
    --dry-run) dry_run=1 && shift ;;
    --) shift && break ;;
    *) die "unknown argument $1; $usage" ;;
  esac
done
(($# > 0)) || die "no command after --; $usage"
[[ $ranks =~ ^[1-9][0-9]?$ ]] || die "--ranks: found \"$ranks\", expected 1 to 99"
[[ $gbps =~ ^[0-9]*\.?[0-9]+$ && $gbps =~ [1-9] ]] || die "--gbps: found \"$gbps\", expected a number above 0"
[[ $delay_us =~ ^[0-9]+$ ]] || die "--delay-us: found \"$delay_us\", expected an integer of at least 0"
[[ -z $slow_link || $slow_link =~ ^[0-9]+-[0-9]+:[0-9]*\.?[0-9]+$ ]] || die "--slow-link: found \"$slow_link\", expected two ranks and a rate, such as 0-2:0.1"
[[ -z $throttle || $throttle =~ ^[0-9]+:[1-9][0-9]?$ ]] || die "--throttle: found \"$throttle\", expected a rank and 1 to 99 percent, such as 2:50"
[[ -z $clock || $clock =~ ^[0-9]+:-?[0-9]+$ ]] || die "--clock: found \"$clock\", expected a rank and seconds, such as 1:1000"
if [[ -z $dry_run ]]; then
  for tool in ip:iproute2 tc:iproute2 taskset:util-linux unshare:util-linux mpirun:openmpi-bin; do
    command -v "${tool%:*}" >/dev/null || die "${tool%:*} is missing; install ${tool#*:}" 69
  done
  ((EUID == 0)) || die "needs root to create network namespaces; run it with sudo" 77
fi

export TRIVET_NETLAB="trivet-$$"
export TRIVET_NETLAB_CLOCK="$clock"
export TRIVET_NETLAB_GBPS="$gbps" TRIVET_NETLAB_DELAY_US="$delay_us"  # ranks compute their floors from these
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
switch="$TRIVET_NETLAB-switch"
network=10.77.0

# Each rank's share of the cores this process may use, as lists for taskset; if ranks outnumber cores, they share cores.
cores_of_ranks() {
  local cores=() part first last rank i share
  IFS=, read -ra parts <<<"$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)"
  for part in "${parts[@]}"; do
    first=${part%-*} last=${part#*-}
    for ((i = first; i <= last; ++i)); do cores+=("$i"); done
  done
  share=$((${#cores[@]} / ranks))
  for ((rank = 0; rank < ranks; ++rank)); do
    if ((share > 0)); then
      (IFS=, && echo "${cores[*]:rank * share:share}")
    else
      echo "${cores[rank % ${#cores[@]}]}"
    fi
  done
}
TRIVET_NETLAB_CORES="$(cores_of_ranks | tr '\n' ' ')"
export TRIVET_NETLAB_CORES

run() {
  if [[ -n $dry_run ]]; then
    echo "$*"
  else
    "$@"
  fi
}

# Signals all processes on the hosts; true as long as there are any.
signal_hosts() {
  local rank pids=''
  for ((rank = 0; rank < ranks; ++rank)); do
    pids+=" $(ip netns pids "$TRIVET_NETLAB-$rank" 2>/dev/null || true)"
  done
  # shellcheck disable=SC2086
  [[ -n ${pids//[[:space:]]/} ]] && { kill "-$1" $pids 2>/dev/null || true; }
}

throttling=''
clean_up() {
  local status=$? rank tries
  [[ -z $throttling ]] || kill "$throttling" 2>/dev/null || true
  trap - EXIT
  trap '' INT TERM HUP
  for ((tries = 0; tries < 50; ++tries)); do
    signal_hosts "$( ((tries < 30)) && echo TERM || echo KILL)" || break
    sleep 0.1
  done
  for ((rank = 0; rank < ranks; ++rank)); do
    ip netns delete "$TRIVET_NETLAB-$rank" 2>/dev/null || true
  done
  ip netns delete "$switch" 2>/dev/null || true  # and with it the bridge and its cable ends
  exit "$status"
}
if [[ -z $dry_run ]]; then
  trap clean_up EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
fi

# Limits a device's egress rate. The bucket holds 1 ms of traffic, but at least two of the largest packets (GSO)
# that the kernel hands to it; the queue behind it holds 100 ms of traffic before TCP sees a loss.
bits=$(awk -v g="$gbps" 'BEGIN {printf "%d", g * 1e9}')
((bits >= 8000)) || die "--gbps: $gbps is below 8 kbit/s"
burst=$((bits / 8000 > 131072 ? bits / 8000 : 131072))
limit() { # NAMESPACE DEVICE
  run tc -n "$1" qdisc add dev "$2" root handle 1: tbf rate "${bits}bit" burst "$burst" \
    limit "$((burst + bits / 80))"
}
delay() { # NAMESPACE DEVICE
  ((delay_us > 0)) || return 0
  run tc -n "$1" qdisc add dev "$2" parent 1:1 handle 10: netem delay "${delay_us}us" limit 100000 ||
    die "this kernel has no delay queue (sch_netem), so --delay-us is unavailable; leave it out, or emulate latency with comm.link_latency_us" 69
}

slow() { # HOST PEER RATE: below the limit of the whole cable
  local name="$TRIVET_NETLAB-$1"
  run tc -n "$name" qdisc add dev eth0 parent 1:1 handle 20: htb default 1
  run tc -n "$name" class add dev eth0 parent 20: classid 20:1 htb rate 100gbit quantum 60000
  run tc -n "$name" class add dev eth0 parent 20: classid 20:2 htb rate "$(awk -v g="$3" 'BEGIN {printf "%d", g * 1e9}')bit" quantum 60000
  run tc -n "$name" filter add dev eth0 parent 20: protocol ip u32 match ip dst "$network.$(($2 + 1))/32" flowid 20:2
}
# Stops the host's processes for the rest of each tenth of a second.
throttle() { # HOST PERCENT
  local works pauses
  works=$(printf '0.%03d' "$2") pauses=$(printf '0.%03d' $((100 - $2)))
  while sleep "$pauses"; do
    ip netns pids "$TRIVET_NETLAB-$1" 2>/dev/null | xargs -r kill -CONT 2>/dev/null || true
    sleep "$works"
    ip netns pids "$TRIVET_NETLAB-$1" 2>/dev/null | xargs -r kill -STOP 2>/dev/null || true
  done
}

remove_leftovers() {
  local name pid
  for name in $(ip netns list | awk '/^trivet-[0-9]+-/ {print $1}'); do
    pid=${name#trivet-} pid=${pid%%-*}
    if [[ ! -e /proc/$pid ]]; then
      ip netns pids "$name" | xargs -r kill -KILL 2>/dev/null || true
      ip netns delete "$name" 2>/dev/null || true
    fi
  done
}
[[ -n $dry_run ]] || remove_leftovers

run ip netns add "$switch" || die "this kernel or container forbids network namespaces" 77
run ip -n "$switch" link add bridge type bridge
run ip -n "$switch" link set bridge up
hosts=''
for ((rank = 0; rank < ranks; ++rank)); do
  name="$TRIVET_NETLAB-$rank"
  run ip netns add "$name"
  run ip -n "$name" link set lo up
  run ip -n "$switch" link add "port$rank" type veth peer name eth0 netns "$name"
  run ip -n "$switch" link set "port$rank" master bridge up
  run ip -n "$name" address add "$network.$((rank + 1))/24" dev eth0
  run ip -n "$name" link set eth0 up
  limit "$name" eth0
  delay "$name" eth0
  limit "$switch" "port$rank"
  hosts+="${hosts:+,}$network.$((rank + 1)):1"
done

if [[ -n $slow_link ]]; then
  IFS=-: read -r a b rate <<<"$slow_link"
  slow "$a" "$b" "$rate"
  slow "$b" "$a" "$rate"
fi
if [[ -n $throttle && -z $dry_run ]]; then
  throttle "${throttle%:*}" "${throttle#*:}" &
  throttling=$!
fi

# Every byte between ranks goes over the cable: TCP only, no shared memory, no direct copies between processes.
# shellcheck disable=SC2054
command=(mpirun --allow-run-as-root -n "$ranks" --host "$hosts" --bind-to none
  --mca plm_rsh_agent "$here/enter.sh" --mca plm_rsh_no_tree_spawn 1
  --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include "$network.0/24" --mca oob_tcp_if_include "$network.0/24"
  "$@")
line="$(printf '%q ' "${command[@]}")"
if [[ -n $dry_run ]]; then
  echo "$here/enter.sh $network.1 $line"
  exit 0
fi
"$here/enter.sh" "$network.1" "$line" <&0 &
status=0
wait "$!" || status=$?  # unlike a foreground command, wait is interrupted by signals
exit "$status"
