# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder: paths, messages, and the care of background processes.
# Invariant: a process is ours only if pid, start time and boot all match what was written down when it was started.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
STACK=$(realpath -m "${STACK_DIR:-$HERE/../../target/stack}")
shopt -s inherit_errexit
# A login shell's PATH may lack these, and a user's own curl or apt settings must not decide about the tests.
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LC_ALL=C
export no_proxy='*' NO_PROXY='*'
# Never a person's ~/.docker.
export DOCKER_CONFIG="$STACK/docker-config"
unset DOCKER_CONTEXT DOCKER_AUTH_CONFIG

SOCKET="$STACK/run/docker.sock"
CONTAINERD="$STACK/engine/exec/containerd"

say() { printf 'stack: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
[[ $STACK == /*/* ]] || die "STACK_DIR is $STACK: it needs a folder of its own"

# Fails the script, naming the part, with the end of its log.
die_with_log() { # PART REASON
  say "$1: $2"
  if [[ -s $STACK/log/$1.log ]]; then
    say "the last lines of $STACK/log/$1.log:"
    tail -n 20 "$STACK/log/$1.log" >&2
  fi
  exit 1
}

# One up or down at a time. Everything started from here closes descriptor 9, or the lock would live as long as a daemon.
lock() {
  mkdir -p "$STACK"
  exec 9>"$STACK/.lock"
  flock -w 300 9 || die "another up.sh or down.sh has held $STACK/.lock for five minutes"
}

start_time() { # PID: field 22 of stat, behind the program's name, which may contain blanks; fails for zombies
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] || return 1
  echo "${fields[19]}"
}

spawn() { # NAME PROGRAM ARG…
  local name=$1 pid
  shift
  setsid "$@" </dev/null >"$STACK/log/$name.log" 2>&1 9>&- &
  pid=$!
  echo "$pid $(start_time "$pid" || echo gone) $(</proc/sys/kernel/random/boot_id)" >"$STACK/run/$name.pid"
}

# Prints the pid of a part that runs; fails if it does not.
pid_of() { # NAME
  local pid started boot
  read -r pid started boot 2>/dev/null <"$STACK/run/$1.pid" || return 1
  [[ $boot == "$(</proc/sys/kernel/random/boot_id)" && $(start_time "$pid") == "$started" ]] || return 1
  echo "$pid"
}

stop_pid() { # PID SECONDS: TERM, wait, KILL
  local started deadline=$((SECONDS + $2))
  started=$(start_time "$1") || return 0
  kill -TERM "$1" 2>/dev/null || return 0
  while [[ $(start_time "$1") == "$started" ]]; do
    if ((SECONDS >= deadline)); then
      kill -KILL "$1" 2>/dev/null || true
      deadline=$((SECONDS + 5))
    fi
    sleep 0.1
  done
}

wait_ready() { # NAME SECONDS CHECK…: the check is polled; the end of the process ends the wait
  local name=$1 seconds=$2 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    pid_of "$name" >/dev/null || die_with_log "$name" "it ended before it was ready"
    ((SECONDS < deadline)) || die_with_log "$name" "not ready after $seconds s"
    sleep 0.1
  done
}

# The client may hang on an engine that accepts and never answers, hence the deadline.
engine_answers() { # HOST
  [[ $1 != unix://* || -S ${1#unix://} ]] || return 1
  DOCKER_HOST=$1 timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

default_docker_host() { echo "${DOCKER_HOST:-unix:///var/run/docker.sock}"; }

compose_versions() { # oldest first
  local file
  for file in "$STACK"/compose/*/docker-compose; do
    [[ ! -x $file ]] || basename "$(dirname "$file")"
  done | sort -V
}
