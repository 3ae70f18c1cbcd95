# Shared by tools/setup, tools/quickstart and tools/test. Source it; it runs nothing.
# shellcheck shell=bash

MW_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export LC_ALL=C.UTF-8  # one decimal point and one sort order everywhere
MW_JOBS="${MESHWRIGHT_JOBS:-$(nproc)}"

if [[ -t 1 ]]; then
  MW_BOLD=$'\033[1m' MW_RED=$'\033[31m' MW_OFF=$'\033[0m'
else
  MW_BOLD='' MW_RED='' MW_OFF=''
fi

mw_step() { printf '\n%s==> %s%s\n' "$MW_BOLD" "$*" "$MW_OFF"; }
mw_note() { printf '    %s\n' "$*"; }
mw_fail() {
  printf '%serror:%s %s\n' "$MW_RED" "$MW_OFF" "$*" >&2
  exit 1
}

# Compiles are cached across checkouts: paths under the root are hashed as relative ones.
mw_use_ccache() {
  export CCACHE_BASEDIR="$MW_ROOT" CCACHE_NOHASHDIR=1
  if [[ -z "${CCACHE_DIR:-}" && -z "${HOME:-}" ]]; then
    export CCACHE_DIR="$MW_ROOT/build/ccache"
  fi
}

# mw_build PRESET TARGET...: a build whose failure names the preset.
mw_build() {
  local preset="$1"
  shift
  cmake --build "$MW_ROOT/build/$preset" --parallel "$MW_JOBS" --target "$@" ||
    mw_fail "the $preset build failed; to repeat it: cmake --build build/$preset --target $*"
}
