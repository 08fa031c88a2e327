#!/usr/bin/env bash
# A box: Debian 12 with systemd as process 1, in a container of the stack's engine, for trying what is installed on real ones.
#
#   box.sh build                     makes the image, once; prints its name
#   box.sh start [--no-docker] [NAME]   starts one, waits until it has booted, prints its name
#   box.sh exec NAME COMMAND…        runs something in it as root; stdin, stdout and exit status are passed on
#   box.sh copy NAME FROM TO         copies a file or a folder into it; TO is the new path; owned by root
#   box.sh stop NAME…                removes it
#
# It shares the host's network, so the stack's registry and OpenBao and a control plane on loopback are reachable. Its Docker is
# the stack's engine behind a docker.socket and docker.service of its own: stopping these is an outage of this box alone.
# The engine sees the host's files, not the box's: a bundle that mounts its own content cannot be deployed here.
# Invariant: a box touches nothing of the host but its own control group, and the engine.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

SUITE=bookworm
# python3-apt: Ansible's apt module.
PACKAGES=systemd,systemd-sysv,dbus,adduser,ca-certificates,curl,gnupg,iproute2,procps,python3,python3-apt,sudo
KEY=$SUITE-$(sha256sum <<<"$PACKAGES" | cut -c1-12)
IMAGE=monky-box:$KEY

build() {
  use_stack
  mkdir -p "$BOX_DIR"
  exec 8>"$BOX_DIR/.lock"
  flock -w 900 8 || die "another build has held $BOX_DIR/.lock for a quarter of an hour"
  docker image inspect "$IMAGE" >/dev/null 2>&1 && return
  local tar=$BOX_DIR/$KEY.tar
  if [[ ! -f $tar ]]; then
    need debootstrap
    local mirror root
    mirror=$(debian_mirror)
    root=$BOX_DIR/root.$$
    # shellcheck disable=SC2064 # the path of now
    trap "rm -rf --one-file-system '$root'" EXIT
    say "debootstrap $SUITE (takes a minute)"
    debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$root" "$mirror" >"$BOX_DIR/debootstrap.log" 2>&1 ||
      { tail -n 5 "$BOX_DIR/debootstrap.log" >&2; die "debootstrap failed: see $BOX_DIR/debootstrap.log"; }
    rm -f "$root"/var/cache/apt/archives/*.deb
    # Each box gets its own.
    : >"$root/etc/machine-id"
    tar -C "$root" --one-file-system -c . >"$tar.new"
    mv "$tar.new" "$tar"
  fi
  docker import "$tar" "$IMAGE" >/dev/null
  say "image $IMAGE"
}

give_docker() { # NAME
  docker cp "$(command -v docker)" "$1:/usr/bin/docker" >/dev/null
  docker exec "$1" mkdir -p /usr/libexec/docker/cli-plugins
  docker cp "$STACK_DIR/compose/${STACK_COMPOSE_VERSIONS##* }/docker-compose" "$1:/usr/libexec/docker/cli-plugins/docker-compose" >/dev/null
  docker exec -i "$1" sh -e <<'BOX'
chown root:root /usr/bin/docker /usr/libexec/docker/cli-plugins/docker-compose
chmod 755 /usr/bin/docker /usr/libexec/docker/cli-plugins/docker-compose
groupadd --system docker
cat >/etc/systemd/system/docker.socket <<'UNIT'
[Unit]
Description=Docker socket of the box
[Socket]
ListenStream=/run/docker.sock
SocketMode=0660
SocketGroup=docker
[Install]
WantedBy=sockets.target
UNIT
cat >/etc/systemd/system/docker.service <<'UNIT'
[Unit]
Description=The engine that this box may use
Requires=docker.socket
After=docker.socket
[Service]
ExecStart=/lib/systemd/systemd-socket-proxyd /engine/docker.sock
[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl -q enable --now docker.socket docker.service
BOX
}

start() {
  local docker=yes name
  if [[ ${1:-} == --no-docker ]]; then
    docker=no
    shift
  fi
  name=${1:-monky-box-$(random_name)}
  build
  docker run -d --name "$name" --hostname "$name" --add-host "$name:127.0.0.1" --label monky-box=1 --network host \
    --cap-add SYS_ADMIN --cgroupns=host --tmpfs /run --tmpfs /run/lock -v /sys/fs/cgroup:/sys/fs/cgroup:rw \
    -v "${STACK_DOCKER_HOST#unix://}":/engine/docker.sock \
    --env container=docker "$IMAGE" /sbin/init >/dev/null
  # 'degraded' would be an end too, and a bad one.
  local state
  wait_for 120 "$name answers" docker exec "$name" systemctl --version
  wait_for 120 "$name has booted" docker exec "$name" sh -c 'test -S /run/systemd/private'
  state=$(docker exec "$name" timeout 90 systemctl is-system-running --wait || true)
  [[ $state == running ]] || { docker exec "$name" systemctl --failed >&2 || true; die "$name is '$state'"; }
  # As systemd has it outside of containers: without it a unit's LoadCredential= stays empty.
  docker exec "$name" mount --make-rshared /
  [[ $docker == no ]] || give_docker "$name"
  echo "$name"
}

copy() { # NAME FROM TO
  if [[ -d $2 ]]; then
    tar -C "$2" --owner=0 --group=0 -c . | docker exec -i "$1" sh -c 'mkdir -p "$1" && tar -x -C "$1"' sh "$3"
  else
    local mode
    mode=$(stat -c %a "$2")
    docker exec -i "$1" sh -c 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"' sh "$3" "$mode" <"$2"
  fi
}

verb=${1:-}
shift || true
case $verb in
  build)
    build
    echo "$IMAGE"
    ;;
  start) start "$@" ;;
  exec)
    use_stack
    exec docker exec -i "$@"
    ;;
  copy)
    (($# == 3)) || die "usage: box.sh copy NAME FROM TO"
    use_stack
    copy "$@"
    ;;
  stop)
    use_stack
    docker rm -f -v "$@" >/dev/null
    ;;
  *) die "usage: box.sh build | start [--no-docker] [NAME] | exec NAME COMMAND… | copy NAME FROM TO | stop NAME…" ;;
esac
