#!/usr/bin/env bash
# launch/nccl_env.sh on the sysfs trees in tests/sysfs: which cards it picks, and that it keeps variables already set.
#   nccl_env_test.sh CHECKOUT
set -uo pipefail
script=$1/launch/nccl_env.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset "${!NCCL_@}" SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK
failed=0
for tree in "$1"/tests/sysfs/*.txt; do
  name=${tree##*/}
  into=$folder/${name%.txt}
  mapfile -t folders < <(sed -nE 's/^([^#].*)\/[^/]+ (=|->) .*/\1/p' "$tree" | sort -u)
  (mkdir -p "$into" && cd "$into" && mkdir -p "${folders[@]}")
  while read -r path sign value; do
    case $sign in
      =) echo "$value" >"$into/$path" ;;
      '->') ln -s "$value" "$into/$path" ;;
    esac
  done <"$tree"
done
# The variables set for a node, as "NAME=VALUE …", must equal TEXT, and the output must contain each further argument.
expect() {  # TREE TEXT [PATTERN…]
  local found pattern
  # shellcheck disable=SC2016
  found=$(TRIVET_SYS=$folder/$1 "$script" bash -c 'for name in "${!NCCL_@}"; do echo "$name=${!name}"; done' 2>"$folder/said" | tr '\n' ' ')
  if [[ ${found% } != "$2" ]]; then
    echo "$1: found \"${found% }\", expected \"$2\""
    failed=1
  fi
  for pattern in "${@:3}"; do
    grep -q -- "$pattern" "$folder/said" || { echo "$1: \"$pattern\" is not in:"; cat "$folder/said"; failed=1; }
  done
}
rails='=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1'
expect eight_gpus_infiniband "NCCL_CROSS_NIC=0 NCCL_IB_HCA=$rails NCCL_PXN_DISABLE=0" \
  'mlx5_8:1 is left out: its state is "1: DOWN"' 'mlx5_7:1 .* left to others' 'peermem is loaded' 'should divide 8'
NCCL_IB_HCA=mlx5_7 NCCL_PXN_DISABLE=1 expect eight_gpus_infiniband \
  "NCCL_CROSS_NIC=0 NCCL_IB_HCA=mlx5_7 NCCL_PXN_DISABLE=1" "NCCL_IB_HCA=mlx5_7 is set by you and kept .*=mlx5_0:1"
NCCL_CROSS_NIC='' expect eight_gpus_infiniband "NCCL_CROSS_NIC= NCCL_IB_HCA=$rails NCCL_PXN_DISABLE=0" 'NCCL_CROSS_NIC= is set by you'
roce='=rocep24s0:1,rocep64s0:1,rocep79s0:1,rocep94s0:1,rocep154s0:1,rocep192s0:1,rocep206s0:1,rocep220s0:1'
expect eight_gpus_roce "NCCL_CROSS_NIC=0 NCCL_IB_HCA=$roce NCCL_IB_TC=106 NCCL_PXN_DISABLE=0" 'mlx5_bond_0:1 .*100 Gbit/s' \
  'peermem is not loaded'
rm -r "$folder"/eight_gpus_roce/devices/*/*/*/*/*/infiniband/*/tc
expect eight_gpus_roce "NCCL_CROSS_NIC=0 NCCL_IB_HCA=$roce NCCL_PXN_DISABLE=0" 'NCCL_IB_TC is not set'
# Pairs of GPUs share a card; GPUs on separate root ports have no card of their own.
expect four_gpus_two_cards 'NCCL_CROSS_NIC=0 NCCL_IB_HCA==mlx5_0:1,mlx5_2:1 NCCL_PXN_DISABLE=0' 'mlx5_1:1 .* left to others'
# Below one switch: a GPU, a slow card, and a fast one whose name comes later.
switch=devices/pci0000:15/0000:15:01.0/0000:16:00.0 node=$folder/two_rates
mkdir -p "$node/bus/pci/devices" "$node/class/infiniband" "$node/$switch/0000:17:00.0/0000:18:00.0"
echo 0x10de >"$node/$switch/0000:17:00.0/0000:18:00.0/vendor"
echo 0x030200 >"$node/$switch/0000:17:00.0/0000:18:00.0/class"
ln -s "../../../$switch/0000:17:00.0/0000:18:00.0" "$node/bus/pci/devices/0000:18:00.0"
while read -r card place rate; do
  port=$node/$switch/$place/infiniband/$card/ports/1
  mkdir -p "$port"
  echo '4: ACTIVE' >"$port/state"; echo "$rate Gb/sec (4X)" >"$port/rate"; echo InfiniBand >"$port/link_layer"
  ln -s ../.. "$node/$switch/$place/infiniband/$card/device"
  ln -s "../../$switch/$place/infiniband/$card" "$node/class/infiniband/$card"
done <<'END'
mlx5_0 0000:17:01.0/0000:19:00.0 100
mlx5_1 0000:17:02.0/0000:1a:00.0 400
END
expect two_rates 'NCCL_IB_HCA==mlx5_1:1' 'mlx5_0:1 (InfiniBand, 100 Gbit/s) is left'

expect four_gpus_one_card 'NCCL_IB_HCA==mlx5_0:1' 'highest rate, 200 Gbit/s' 'mlx5_1:1 (Ethernet, 25 Gbit/s) is left'
expect a_folder_that_is_not_there '' '0 GPUs and 0 active ports' 'nothing to set'
# docs/clusters.md shows this output.
expect eight_gpus_infiniband "NCCL_CROSS_NIC=0 NCCL_IB_HCA=$rails NCCL_PXN_DISABLE=0"
while IFS= read -r text; do
  grep -qFx -- "${text#    }" "$folder/said" || { echo "docs/clusters.md: not printed: $text"; failed=1; }
done < <(grep '^    nccl_env: ' "$1/docs/clusters.md")
SLURM_PROCID=1 expect eight_gpus_infiniband "NCCL_CROSS_NIC=0 NCCL_IB_HCA=$rails NCCL_PXN_DISABLE=0"
[[ ! -s $folder/said ]] || { echo "rank 1 speaks, too:"; cat "$folder/said"; failed=1; }
TRIVET_SYS=$folder/eight_gpus_infiniband "$script" sh -c 'exit 75' 2>/dev/null
(($? == 75)) || { echo "the command's exit code is lost"; failed=1; }
exit $failed
