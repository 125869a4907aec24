#!/usr/bin/env bash
# launch/setup.sh with stand-ins for dpkg-query, apt-get and sudo: what it installs, the progress that it shows, and its
# message to a user who may not install anything. Also tests the scripts' usage messages.
#   setup_test.sh CHECKOUT
set -uo pipefail
checkout=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
cat >"$folder/bin/dpkg-query" <<'END'
#!/bin/bash
[[ " $MISSING " == *" ${!#} "* ]] || echo 'install ok installed'
END
cat >"$folder/bin/apt-get" <<'END'
#!/bin/bash
echo "apt-get $*" >>"$CALLS"
[[ $1 == install ]] || exit 0
for percent in 8.3 45.0 99.9; do echo "pmstatus:g++:$percent:Unpacking g++"; done
[[ -z $BREAKS ]] || { echo 'E: Unable to locate package'; exit 100; }
END
cat >"$folder/bin/sudo" <<'END'
#!/bin/bash
[[ $1 != -n ]] || exit "$NEEDS_PASSWORD"
echo sudo >>"$CALLS"
exec "$@"
END
chmod +x "$folder"/bin/*
failed=0
# expect WHAT CODE TEXT: runs install_packages as user $user, without a terminal
expect() {
  local code=0
  : >"$folder/calls"
  output=$(CALLS=$folder/calls PATH=$folder/bin:$PATH bash -c "set -uo pipefail
    source <(sed 's/EUID == 0/$user == 0/; s/EUID != 0/$user != 0/' '$checkout/launch/setup.sh')
    packages+=(dict-gcide); install_packages" </dev/null 2>&1) || code=$?
  if ((code != $2)) || [[ $output != *"$3"* ]]; then
    echo "$1: exit $code (expected $2), text \"$3\" in:"; echo "$output"; cat "$folder/calls"
    failed=1
  fi
}
export MISSING='' BREAKS='' NEEDS_PASSWORD=1
user=1000 expect 'all are there' 0 ''
[[ -z $output && ! -s $folder/calls ]] || { echo "something was done: $output"; failed=1; }
MISSING='g++ dict-gcide'
user=1000 expect 'no right to install' 69 'apt-get install g++ dict-gcide'
[[ ! -s $folder/calls ]] || { echo "apt-get was called"; failed=1; }
NEEDS_PASSWORD=0 user=1000 expect 'sudo' 0 'installing 2 packages: g++ dict-gcide'
grep -q '^sudo$' "$folder/calls" || { echo "no sudo"; failed=1; }
user=0 expect 'progress' 0 'installing: 90 %  Unpacking g++'
grep -q '^apt-get install .* g++ dict-gcide$' "$folder/calls" || { echo "calls:"; cat "$folder/calls"; failed=1; }
BREAKS=1 user=0 expect 'a failure of apt-get' 70 'E: Unable to locate package'

# A compiler cache is used if its folder is writable.
for cache in "$folder/cache" /proc/cache; do
  printf '#!/bin/sh\n[ "$*" = "--get-config cache_dir" ] && echo %s\n' "$cache" >"$folder/bin/ccache"; chmod +x "$folder/bin/ccache"
  launcher=$(unset CMAKE_CXX_COMPILER_LAUNCHER; PATH=$folder/bin:$PATH; source "$checkout/launch/setup.sh"; echo "${CMAKE_CXX_COMPILER_LAUNCHER-}")
  [[ $launcher == "$([[ $cache == /proc/* ]] || echo ccache)" ]] || { echo "ccache in $cache: launcher \"$launcher\""; failed=1; }
done

# A build folder copied from another checkout is recreated, so that nothing is built there; this checkout's own is kept.
mkdir -p "$folder/copy/launch" "$folder/original"
cp "$checkout/launch/setup.sh" "$folder/copy/launch/"
printf '#!/bin/sh\necho cmake >>"$CALLS"; mkdir -p "$4"; touch "$4/build.ninja"\n' >"$folder/bin/cmake"
printf '#!/bin/sh\necho ninja >>"$CALLS"\n' >"$folder/bin/ninja"
chmod +x "$folder/bin/cmake" "$folder/bin/ninja"
for home in "$folder/original" "$folder/removed" "$folder/copy"; do
  mkdir -p "$folder/copy/build"
  echo "CMAKE_HOME_DIRECTORY:INTERNAL=$home" >"$folder/copy/build/CMakeCache.txt"
  touch "$folder/copy/build/build.ninja" "$folder/copy/build/object.o"
  printf default >"$folder/copy/build/.configured"
  : >"$folder/calls"
  output=$(CALLS=$folder/calls PATH=$folder/bin:$PATH bash -c "source '$folder/copy/launch/setup.sh'; build_trivet '$folder/copy/build'" 2>&1)
  calls=$(tr '\n' ' ' <"$folder/calls") expected='cmake ninja ' kept=0
  [[ $home != */copy ]] || expected='ninja ' kept=1
  if [[ $calls != "$expected" || -e $folder/copy/build/object.o && $kept == 0 || $kept == 0 && $output != *"$home"* ]]; then
    echo "a build folder of $home: calls \"$calls\" (expected \"$expected\"), output:"; echo "$output"
    failed=1
  fi
done

# The scripts print their usage, and refuse unknown arguments before they do anything.
usage_of() {  # SCRIPT CODE TEXT ARGUMENT…
  local name=$1 code=$2 text=$3 found=0
  shift 3
  : >"$folder/calls"
  output=$(CALLS=$folder/calls PATH=$folder/bin:$PATH "$checkout/launch/$name" "$@" 2>&1 </dev/null) || found=$?
  if ((found != code)) || [[ -s $folder/calls || $output != *"$text"* || $output != *"launch/$name "* ]]; then
    echo "$name $*: exit $found (expected $code), text \"$text\" in:"; echo "$output"; cat "$folder/calls"
    failed=1
  fi
}
MISSING=g++
for tool in cmake ninja mpirun; do printf '#!/bin/sh\necho "$0" >>"$CALLS"\nexit 1\n' >"$folder/bin/$tool"; chmod +x "$folder/bin/$tool"; done
for name in demo.sh exercise.sh test.sh fuzz.sh gpu.sh gpu_pack.sh mpirun.sh supervise.sh netlab/netlab.sh; do
  usage_of "$name" 0 '' --help
  [[ $name == netlab/* ]] || usage_of "$name" 64 'unknown argument --mintes' --mintes 2
done
usage_of fuzz.sh 64 'unknown argument weight' weight
usage_of mpirun.sh 64 'RUN.yaml is missing' --gpus 2
usage_of gpu.sh 64 '--device: found "gpu"' one --device gpu
usage_of gpu.sh 64 'which part' --device cpu
exit "$failed"
