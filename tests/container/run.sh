#!/usr/bin/env bash
# Executes launch/container/Containerfile without a container engine: each stage in a root created by debootstrap, with
# ARG, WORKDIR, COPY, RUN and USER as in an engine. Then trains there as the image's user, on threads and on MPI ranks,
# and logs in by ssh as the MPI Operator's launcher does. Needs root, ten minutes on two cores, and 3 GB in TMPDIR.
#   tests/container/run.sh [CMAKE OPTION…]         e.g. -DTRIVET_CPU_ISAS=native, which builds faster
# Prints one line per check; exits with 1 if any failed. TRIVET_ROOT is a Debian root to copy instead of debootstrap's.
set -uo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../launch/setup.sh"
((EUID == 0)) || usage "only root can change its root"
packages=(debootstrap)
install_packages || exit
dir=$(mktemp -d)
clean_up() {
  local at
  awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount
  if ((failed == 0)); then rm -rf --one-file-system "$dir"; else echo "the roots are in $dir"; fi
}
passed=0 failed=0
trap clean_up EXIT
check() {  # WHAT COMMAND…
  local what=$1
  shift
  if "$@" >"$dir/log" 2>&1; then
    passed=$((passed + 1))
    printf '%4d s  passed  %s\n' $SECONDS "$what"
  else
    failed=$((failed + 1))
    printf '%4d s  FAILED  %s\n' $SECONDS "$what"
    tail -n 20 "$dir/log"
  fi
}
give_up() { echo "$passed passed, $failed failed"; exit 1; }

base=${TRIVET_ROOT-}
if [[ ! $base ]]; then
  base=$dir/base
  check "debootstrap" debootstrap --variant=minbase bookworm "$base" http://deb.debian.org/debian
  ((failed == 0)) || give_up
fi

# ---- the Containerfile's instructions

declare -A arguments=([BUILD]=debian [RUN]=debian [OPTIONS]="$*") roots=()
stage='' user=root at=/
inside() {  # COMMAND: as the stage's user, in its folder
  chroot "$stage" setpriv --reuid="$user" --regid="$user" --init-groups \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$([[ $user == root ]] && echo /root || echo "/home/$user")" \
    LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -c "cd '$at' && $1"
}
line() {
  local word=${1%% *} rest=${1#* } name
  for name in "${!arguments[@]}"; do [[ $word == RUN && $name == RUN ]] || rest=${rest//\$\{$name\}/${arguments[$name]}}; done
  case $word in
    ARG) name=${rest%%=*}; [[ -v arguments[$name] ]] ;;
    FROM)
      stage=$dir/stage${#roots[@]} user=root at=/
      roots[${rest##* }]=$stage
      cp -a "$base" "$stage" && mount -t proc proc "$stage/proc" && mount -t tmpfs shm "$stage/dev/shm" &&
        cp /etc/resolv.conf "$stage/etc/"
      ;;
    WORKDIR) at=$rest; mkdir -p "$stage$at" ;;
    USER) user=$rest ;;
    COPY)
      if [[ $rest == --from=* ]]; then
        name=${rest#--from=} name=${name%% *} rest=${rest#* }
        # shellcheck disable=SC2086
        (cd "${roots[$name]}" && cp ./${rest% *} "$stage/${rest##* }")
      else
        [[ $rest == '. .' ]] && git -C "$root" ls-files -z -co --exclude-standard | tar -C "$root" --null -T - -c | tar -x -C "$stage$at"
      fi
      ;;
    RUN) inside "$rest" ;;
    CMD) [[ $rest == '["trivet", "--help"]' ]] && inside "trivet --help" ;;
    *) echo "a line that this test does not know"; false ;;
  esac
}
while IFS= read -r -u 3 text; do
  [[ -z $text || $text == \#* ]] && continue
  check "${text:0:100}" line "$text"
  ((failed == 0)) || give_up
done 3<"$root/launch/container/Containerfile"

# ---- checks of the image

# shellcheck disable=SC2016
check "the user is not root" inside '[ "$(id -un)" = trivet ]'
version=$(sed -n 's/^project(trivet VERSION \([0-9.]*\) .*/\1/p' "$root/CMakeLists.txt")
check "program and package have CMakeLists.txt's version" inside \
  "trivet --version | grep -q '^trivet $version,' && dpkg-query --show --showformat='\${Version}\n' trivet | grep -qx '$version'"
check "the scripts and the templates are there" inside \
  'cd /usr/share/trivet && ls launch/supervise.sh launch/slurm/train.sbatch launch/kubernetes/mpijob.yaml configs/tiny.yaml'
check "no compiler is" inside '! command -v g++ && ! command -v cmake'
check "data prepare" inside 'gunzip -c /usr/share/doc/trivet/docs/faults.md.gz >faults.md 2>/dev/null || cp /usr/share/doc/trivet/docs/faults.md . && trivet data prepare --input faults.md --document paragraph --tokenizer bytes --output data/text'
small='/usr/share/trivet/configs/tiny.yaml --set data.path=data/text --set train.train_iters=5 --set train.eval_interval=0 --set model.hidden_size=64 --set device.threads_per_rank=1'
check "trains on eight threads" inside "trivet train $small --ranks 8 --set train.run_dir=runs/threads"
check "trains on four MPI ranks" inside "mpirun -n 4 --oversubscribe trivet train $small --set train.run_dir=runs/mpi"
check "trains under supervise.sh" inside \
  "/usr/share/trivet/launch/supervise.sh --run-dir runs/supervised -- mpirun -n 4 --oversubscribe trivet train $small --set train.run_dir=runs/supervised"
# shellcheck disable=SC2016
check "sshd runs without root, and ssh logs in" inside 'mkdir -p .ssh && ssh-keygen -q -t rsa -N "" -f .ssh/id_rsa &&
  cp .ssh/id_rsa.pub .ssh/authorized_keys || exit
  timeout 60 /usr/sbin/sshd -De -f ~/.sshd_config & sshd=$!
  sleep 2
  ssh 127.0.0.1 trivet --version; code=$?; kill $sshd; exit $code'
echo "$passed passed, $failed failed"
((failed == 0))
