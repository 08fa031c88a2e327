#!/usr/bin/env bash
# The control plane of one box (examples/plane.rs), in the background.
#
#   plane.sh start FOLDER            starts it; FOLDER/env says where it is, beside config.yaml, bao-ca.pem and bootstrap.jwt,
#                                    which are what a box needs; deploys nothing yet
#   plane.sh deploy FOLDER GENERATION [WEB-VERSION | COMPOSE-FILE]   desires a bundle; prints its sha
#   plane.sh ask FOLDER PATH         reports, checkins, leases, grant, hold, release, 'reachable?is=no'
#   plane.sh stop FOLDER             ends it, and removes what the box deployed
# Invariant: a plane ends with its hour, also when nobody ends it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

ask() { # FOLDER PATH CURL-ARG…
  # shellcheck source=/dev/null
  . "$1/env"
  curl -sS --fail-with-body --noproxy '*' --max-time 30 "${@:3}" "$PLANE_ADMIN/$2"
}

verb=${1:-}
(($# >= 2)) || die "usage: plane.sh start FOLDER | deploy FOLDER GENERATION [WEB-VERSION | COMPOSE-FILE] | ask FOLDER PATH | stop FOLDER"
folder=$2
shift 2
case $verb in
  start)
    use_stack
    mkdir -p "$folder"
    [[ ! -e $folder/env ]] || die "$folder has a plane already"
    (cd "$ROOT" && cargo build -q --locked --example plane)
    STACK_ENV=$STACK_ENV setsid "$ROOT/target/debug/examples/plane" "$folder" </dev/null >"$folder/plane.log" 2>&1 &
    pid=$!
    is_up() { [[ -e $folder/env ]] || ! kill -0 "$pid"; }
    wait_for 120 "the plane's start, see $folder/plane.log" is_up
    [[ -e $folder/env ]] || { cat "$folder/plane.log" >&2; die "the plane did not start"; }
    ;;
  deploy)
    if [[ -f ${2:-} ]]; then
      ask "$folder" "deploy?generation=$1" --data-binary "@$2"
    else
      ask "$folder" "deploy?generation=$1&web=${2:-1}"
    fi
    ;;
  ask) ask "$folder" "$@" ;;
  stop)
    [[ -e $folder/env ]] || exit 0
    # shellcheck source=/dev/null
    . "$folder/env"
    kill "$PLANE_PID" 2>/dev/null || true
    is_gone() { ! kill -0 "$PLANE_PID"; }
    wait_for 60 "the plane's end" is_gone
    ;;
  *) die "unknown command $verb" ;;
esac
