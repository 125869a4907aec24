#!/usr/bin/env bash
# cmake --install puts each component's files where they belong; the package carries CMakeLists.txt's version.
#   install_test.sh CMAKE CHECKOUT BUILD
set -uo pipefail
cmake=$1 checkout=$2 build=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
expect() {  # COMPONENT FILE…: installs the component, which must contain these files
  local component=$1 file
  shift
  "$cmake" --install "$build" --component "$component" --prefix "$folder/$component" >"$folder/log" ||
    { echo "$component:"; cat "$folder/log"; failed=1; }
  for file; do
    [[ -f $folder/$component/$file ]] || { echo "$component: $file is missing"; failed=1; }
  done
}
expect programs bin/trivet
expect core bin/trivet-core
expect launch share/trivet/launch/{supervise,mpirun,nccl_env,wait_for_hosts,setup}.sh share/trivet/launch/slurm/train.sbatch \
  share/trivet/launch/pbs/train.pbs share/trivet/launch/kubernetes/{mpijob,job}.yaml share/trivet/configs/tiny.yaml
expect docs share/doc/trivet/{copyright,CHANGELOG.md,docs/clusters.md}
[[ ! -e $folder/programs/bin/trivet-core && ! -e $folder/launch/bin ]] || { echo "a component has another's files"; failed=1; }
for script in "$folder"/launch/share/trivet/launch/*.sh; do
  [[ -x $script ]] || { echo "$script cannot be started"; failed=1; }
done
"$folder/launch/share/trivet/launch/mpirun.sh" --help | grep -q 'one MPI rank per GPU' || { echo "mpirun.sh does not start"; failed=1; }
version=$(sed -n 's/^project(trivet VERSION \([0-9.]*\) .*/\1/p' "$checkout/CMakeLists.txt")
[[ $version ]] && grep -q "CPACK_PACKAGE_VERSION \"$version\"" "$build/CPackConfig.cmake" || { echo "the package has not version $version"; failed=1; }
grep -q "^## $version" "$checkout/CHANGELOG.md" || { echo "CHANGELOG.md does not know $version"; failed=1; }
exit $failed
