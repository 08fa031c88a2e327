# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder and of cases/: paths, messages, the stack, what has to be installed.
# Invariant: whatever a script starts or makes has a random name, and goes by that name.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
ROOT=$(realpath "$HERE/../..")
shopt -s inherit_errexit
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LC_ALL=C
BOX_DIR=$(realpath -m "${BOX_DIR:-$ROOT/target/box}")
STACK_ENV=${STACK_ENV:-$ROOT/target/stack/env}
TOOLS=$ROOT/target/tools

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
die() { say "$*"; exit 1; }

# The stack that is up: STACK_REGISTRY, STACK_BAO_ADDR, …; its engine becomes the docker command's.
use_stack() {
  [[ -r $STACK_ENV ]] || die "$STACK_ENV is missing: start the real stack with 'make stack-up', or set STACK_ENV"
  # shellcheck source=/dev/null
  . "$STACK_ENV"
  export DOCKER_HOST=$STACK_DOCKER_HOST
  # Never a person's ~/.docker.
  export DOCKER_CONFIG=$STACK_DIR/docker-config
  unset DOCKER_CONTEXT DOCKER_AUTH_CONFIG
}

# The host's own Debian mirror: this project names none.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016 # apt-get fills them in
  find_mirror() { apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }'; }
  mirror=${STACK_DEBIAN_MIRROR:-$(find_mirror)}
  if [[ -z $mirror ]]; then
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
    mirror=$(find_mirror)
  fi
  [[ -n $mirror ]] || die "no Debian mirror among the apt sources: set STACK_DEBIAN_MIRROR"
  echo "$mirror"
}

# Installs the package of a program that is missing.
need() { # PROGRAM [PACKAGE]
  command -v "$1" >/dev/null && return
  [[ $(id -u) == 0 ]] || die "$1 is missing, and installing ${2:-$1} needs root"
  say "installing ${2:-$1}"
  local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
  export DEBIAN_FRONTEND=noninteractive
  "${apt[@]}" install -y --no-install-recommends "${2:-$1}" </dev/null >/dev/null 2>&1 ||
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${2:-$1}" </dev/null >/dev/null; } ||
    die "apt-get install ${2:-$1} failed"
}

random_name() { od -An -N4 -tx1 /dev/urandom | tr -d ' \n'; }

# Polls until a command succeeds.
wait_for() { # SECONDS WHAT COMMAND…
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || die "not within $seconds s: $what"
    sleep 0.3
  done
}

# For the cases. DEB: the package that run.sh built, or the last one.
use_package() {
  DEB=${DEB:-$(find "$ROOT/target/package/deb" -name '*.deb' 2>/dev/null | head -n 1)}
  [[ -r $DEB ]] || die "no package: run tests/install/run.sh, or set DEB"
}

# A claim and the command that shows it.
holds() { # WHAT COMMAND…
  local what=$1 seen
  shift
  seen=$("$@" 2>&1) || die "does not hold: $what
$* says:
$seen"
  echo "ok: $what"
}

# A claim and what must be printed.
says() { # WHAT EXPECTED COMMAND…
  local what=$1 expected=$2 seen
  shift 2
  seen=$("$@" 2>&1) || true
  [[ $seen == *"$expected"* ]] || die "does not hold: $what
$* says:
$seen
and not: $expected"
  echo "ok: $what"
}
