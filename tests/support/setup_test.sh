#!/usr/bin/env bash
# launch/setup.sh beside a dpkg-query, apt-get and sudo of the test's own: what it installs, what it shows meanwhile, and
# what it says to a user who may not install anything.
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
# expect WHAT CODE TEXT: of install_packages as user $user, without a terminal
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
exit "$failed"
