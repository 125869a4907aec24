# Sourced by demo.sh and test.sh: installs what is missing, then configures and builds. Quick when nothing changed.
#   build_trivet DIR [CMAKE OPTION…] [-- NINJA TARGET…]
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

packages=(g++ cmake ninja-build pkg-config libgtest-dev dict-gcide
          libopenmpi-dev openmpi-bin libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev libsentencepiece-dev
          zlib1g-dev libxxhash-dev)

# A compiler cache is used where there is one. Precompiled headers are as new as the build, and name no macro.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS-pch_defines,time_macros,include_file_mtime,include_file_ctime}
fi

install_packages() {
  local missing=() package sudo=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || sudo=(sudo)
  echo "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build_trivet() {
  local dir=$1 options=()
  shift
  while (($#)) && [[ $1 != -- ]]; do options+=("$1"); shift; done
  (($#)) && shift
  # Configured again only when asked for something else than last time: ninja itself notices changed CMake files.
  local stamp=$dir/.configured wanted="${options[*]:-default}"
  if [[ ! -f $dir/build.ninja || ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    cmake -S "$root" -B "$dir" -G Ninja "${options[@]}" >"$root/.cmake.log" 2>&1 || { cat "$root/.cmake.log"; return 1; }
    rm -f "$root/.cmake.log"
    printf '%s' "$wanted" >"$stamp"
  fi
  # On a terminal ninja keeps a line up to date; elsewhere a line each tenth of the way, and whatever is no such line.
  if [[ -t 1 ]]; then
    ninja -C "$dir" "$@"
  else
    NINJA_STATUS='%p ' ninja -C "$dir" "$@" | {
      local line tenths=0
      while IFS= read -r line; do
        if [[ ! $line =~ ^\ *([0-9]+)%\  ]]; then
          [[ $line == "ninja: Entering"* || $line == "ninja: no work"* ]] || echo "$line"
        elif ((BASH_REMATCH[1] / 10 > tenths)); then
          tenths=$((BASH_REMATCH[1] / 10))
          echo "$dir: ${tenths}0 % built"
        fi
      done
    }
  fi
}

# mpirun as root needs to be told so, in containers most of all.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
