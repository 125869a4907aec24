#!/usr/bin/env bash
# Sourced by the other scripts: installs what is missing, then configures and builds, with progress output. Quick if
# nothing changed.
#   build_trivet DIR [CMAKE OPTION…] [-- NINJA TARGET…]
#   usage [WHAT IS WRONG]
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The usage of a script is the comment at its top. With WHAT IS WRONG, it goes to stderr and the script exits with 64.
script=$(realpath -- "$0" 2>/dev/null) || script=$0
usage() {
  if (($#)); then
    printf '%s: %s\n' "${script##*/}" "$1" >&2
    usage >&2
    exit 64
  fi
  sed -n '2,${/^#/!q; s/^# \{0,1\}//p}' "$script"
}
case ${1-} in -h | --help) usage; exit 0 ;; esac

# Packages required to build the program; scripts add any others that they need.
packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
          libfmt-dev libsentencepiece-dev libutf8proc-dev zlib1g-dev libarchive-dev libxxhash-dev libboost-dev
          libeigen3-dev prometheus-cpp-dev)
test_packages=(libgtest-dev dict-gcide python3)

# Use ccache if it is installed and this user can write its cache. Precompiled headers require CCACHE_SLOPPINESS: they
# are as new as the build, and do not depend on macros.
can_cache() {
  local folder
  folder=$(ccache --get-config cache_dir 2>/dev/null) && mkdir -p "$folder" 2>/dev/null && [[ -w $folder ]]
}
if can_cache; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS-pch_defines,time_macros,include_file_mtime,include_file_ctime}
fi

# Shows a long command's lines "PERCENT% TEXT" as one redrawn line on a terminal, elsewhere as one line every 10 %.
# Passes other lines through.
show_progress() {  # WHAT
  local line tenths=0
  while IFS= read -r line; do
    if [[ ! $line =~ ^\ *([0-9]+)(\.[0-9]+)?%\ (.*) ]]; then
      [[ $line == "ninja: Entering"* || $line == "ninja: no work"* ]] || echo "$line"
    elif [[ -t 1 ]]; then
      printf '\r\033[K%.*s' "$(($(tput cols 2>/dev/null || echo 80) - 1))" "$1: ${BASH_REMATCH[1]} %  ${BASH_REMATCH[3]}"
    elif ((BASH_REMATCH[1] / 10 > tenths)); then
      tenths=$((BASH_REMATCH[1] / 10))
      echo "$1: ${tenths}0 %  ${BASH_REMATCH[3]}"
    fi
  done
  [[ ! -t 1 ]] || printf '\r\033[K'
}

install_packages() {
  local missing=() package sudo=()
  command -v dpkg-query >/dev/null || {
    echo "this is not a Debian system: install what Debian calls ${packages[*]}" >&2
    return 0
  }
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    # sudo can ask for a password only on a terminal.
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      printf '%s\n' "packages are missing, and this user cannot install them. As root:" \
        "    apt-get install ${missing[*]}" >&2
      return 69
    fi
    sudo=(sudo)
  fi
  echo "installing ${#missing[@]} packages: ${missing[*]}"
  local log
  log=$(mktemp)
  # apt-get's output goes to the log; its progress arrives on another descriptor, as KIND:PACKAGE:PERCENT:TEXT.
  {
    { "${sudo[@]}" apt-get update &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o APT::Status-Fd=1 \
        -o Dpkg::Use-Pty=0 "${missing[@]}"; } 2>&1 || echo "failed" >>"$log"
  } </dev/null | tee -a "$log" | sed -un 's/^[a-z]*status:[^:]*:\([0-9.]*\):\(.*\)/\1% \2/p' | show_progress installing
  if grep -qx failed "$log"; then
    grep -v 'status:' "$log" | tail -n 20 >&2
    rm -f "$log"
    echo "apt-get could not install them; the line that failed: apt-get install ${missing[*]}" >&2
    return 70
  fi
  rm -f "$log"
}

build_trivet() {
  local dir=$1 options=()
  shift
  while (($#)) && [[ $1 != -- ]]; do options+=("$1"); shift; done
  (($#)) && shift
  # Reconfigure only if the options differ from last time: ninja itself notices changed CMake files.
  local stamp=$dir/.configured wanted="${options[*]:-default}" fresh=() home
  # A folder copied or moved with its checkout still refers to the old checkout, and ninja would build that.
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt" 2>/dev/null) || true
  if [[ $home && ! $home -ef $root ]]; then
    echo "${dir##*/} was made for the checkout $home: it is recreated"
    rm -rf "$dir"
  fi
  if [[ ! -f $dir/build.ninja || ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    [[ -f $stamp ]] && fresh=(--fresh)  # drops the previous options
    echo "configuring ${dir##*/}"
    cmake "${fresh[@]}" -S "$root" -B "$dir" -G Ninja "${options[@]}" >"$root/.cmake.log" 2>&1 ||
      { cat "$root/.cmake.log"; return 1; }
    rm -f "$root/.cmake.log"
    printf '%s' "$wanted" >"$stamp"
  fi
  # On a terminal, ninja redraws its own status line, but prints too much if there is nothing to do.
  if [[ -t 1 ]]; then
    [[ $(ninja -C "$dir" -n "$@" 2>&1) != *"no work to do"* ]] || return 0
    NINJA_STATUS='building, %f of %t, %e s: ' ninja -C "$dir" "$@"
  else
    echo "building ${dir##*/}"
    NINJA_STATUS='%p %f of %t  ' ninja -C "$dir" "$@" | show_progress "building ${dir##*/}"
  fi
}

# mpirun refuses to run as root, as in containers, without these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
