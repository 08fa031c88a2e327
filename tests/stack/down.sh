#!/usr/bin/env bash
# Takes the real stack down. down.sh [--purge | --purge-all]: the former removes its data too, the latter also the programs.
# Invariant: it ends and removes only what up.sh started; an engine that was there before stays as it is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

case ${1:-} in
  '' | --purge | --purge-all) ;;
  *) die "usage: down.sh [--purge | --purge-all]" ;;
esac
[[ -d $STACK ]] || exit 0
lock
rm -f "$STACK/env"

# Left to the engine, each container would get ten seconds, and its network's bridge would stay.
empty_engine() {
  local ids
  export DOCKER_HOST=unix://$SOCKET
  engine_answers "$DOCKER_HOST" || return 0
  mapfile -t ids < <(timeout 20 docker ps -aq)
  ((${#ids[@]} == 0)) || timeout 60 docker rm -fv "${ids[@]}" >/dev/null || say "engine: not every container could be removed"
  timeout 30 docker network prune -f >/dev/null || true
}

# What outlives an engine that was killed: containerd and the shims, known by the path of our socket folder, and the containers,
# which are the shims' children. By the time of the second step the shims have no one left to wait for.
end_leftovers() {
  local proc pid line children
  for proc in /proc/[0-9]*; do
    pid=${proc#/proc/}
    line=$({ tr '\0' ' ' <"$proc/cmdline"; } 2>/dev/null) || continue
    [[ $line == *" $CONTAINERD/"* && $(readlink "$proc/exe") == */containerd* ]] || continue
    if [[ $line == *containerd-shim* ]]; then
      children=$(cat "$proc"/task/*/children 2>/dev/null || true)
      # shellcheck disable=SC2086 # a list of numbers
      [[ -z $children ]] || kill -KILL $children 2>/dev/null || true
    fi
    stop_pid "$pid" 5
  done
}

unmount_leftovers() {
  local target
  # Innermost first; mountinfo writes a blank as \040.
  awk '{ print $5 }' /proc/self/mountinfo | while IFS= read -r target; do printf '%b\n' "$target"; done |
    { grep -F "$STACK/" || true; } | sort -r | while IFS= read -r target; do
      [[ $target != "$STACK/"* ]] || umount "$target" 2>/dev/null || umount -l "$target"
    done
}

if pid=$(pid_of engine); then
  empty_engine
  stop_pid "$pid" 30
fi
end_leftovers
unmount_leftovers
for name in registry bao bao-tls; do
  if pid=$(pid_of "$name"); then stop_pid "$pid" 10; fi
done
rm -rf "$STACK/run"

purge() {
  local name
  for name; do rm -rf --one-file-system "${STACK:?}/$name"; done
}
case ${1:-} in
  --purge | --purge-all) purge bin bao build conf docker-config engine log registry ;;&
  --purge-all)
    purge compose opt .lock
    rmdir --ignore-fail-on-non-empty "$STACK"
    ;;
esac
say "down"
