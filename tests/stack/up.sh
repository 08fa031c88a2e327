#!/usr/bin/env bash
# Brings the real stack up: Docker engine, registry with password, OpenBao plain and with TLS, test images.
# Invariant: everything lives in $STACK and listens on loopback, and $STACK/env exists only while all of it answers.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

[[ $(id -u) == 0 ]] || die "up.sh needs root"
for program in opt/docker-registry opt/busybox opt/bao; do
  [[ -x $STACK/$program ]] || die "$STACK/$program is missing: run install.sh first"
done
[[ -n $(compose_versions) ]] || die "no Compose plugin in $STACK/compose: run install.sh first"
# The kernel's limit for a socket's path; dockerd only says 'invalid argument'.
((${#CONTAINERD} < 75)) || die "the path $STACK is too long for the engine's sockets: set STACK_DIR to a shorter one"
lock
mkdir -p "$STACK"/{bin,conf,log,run,engine,registry,bao,docker-config}
chmod 700 "$STACK/conf"

# A value that stays the same until down.sh --purge.
kept() { # NAME COMMAND…
  local file=$STACK/conf/$1
  shift
  if [[ ! -s $file ]]; then
    "$@" >"$file.new"
    mv "$file.new" "$file"
  fi
  cat "$file"
}
random_text() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
# Below the ephemeral range, so that no outgoing connection takes it; the next one too, for OpenBao's cluster listener.
free_port() {
  local port
  for _ in {1..200}; do
    port=$((20000 + (RANDOM % 5000) * 2))
    if ! listens $port && ! listens $((port + 1)) && ! grep -qsx $port "$STACK"/conf/*.port; then
      echo $port
      return
    fi
  done
  return 1
}
# The port of a part: kept, since image names contain it, but given up if someone else took it while the part was down.
port_of() { # NAME
  if ! pid_of "$1" >/dev/null && [[ -s $STACK/conf/$1.port ]] && listens "$(<"$STACK/conf/$1.port")"; then
    rm "$STACK/conf/$1.port"
  fi
  kept "$1.port" free_port
}

http_status() { curl -s -o /dev/null -w '%{http_code}' --max-time 5 "$@" || true; }

start_engine() {
  local other
  HOST=unix://$SOCKET
  if ! pid_of engine >/dev/null; then
    if engine_answers "$(default_docker_host)"; then
      HOST=$(default_docker_host)
      return
    fi
    # Two engines in one network namespace fight over the bridge and iptables.
    for other in /proc/[0-9]*; do
      [[ $(cat "$other/comm" 2>/dev/null) != dockerd || ! $other/ns/net -ef /proc/self/ns/net ]] ||
        die "engine: another dockerd runs (pid ${other#/proc/}) and does not answer at $(default_docker_host): set DOCKER_HOST to its socket"
    done
    command -v dockerd >/dev/null || die "engine: none answers, and there is no dockerd: run install.sh"

    # After an abrupt end these name processes that are gone or, worse, strangers: dockerd would refuse to start or wait for them.
    rm -f "$STACK/engine/docker.pid" "$SOCKET"
    if [[ $(readlink "/proc/$(cat "$CONTAINERD/containerd.pid" 2>/dev/null)/exe") != */containerd* ]]; then
      rm -f "$CONTAINERD/containerd.pid"
    fi
    # A configuration of its own, or the host's /etc/docker/daemon.json would apply.
    echo '{}' >"$STACK/engine/daemon.json"
    spawn engine dockerd --config-file="$STACK/engine/daemon.json" --host="$HOST" --pidfile="$STACK/engine/docker.pid" \
      --data-root="$STACK/engine/data" --exec-root="$STACK/engine/exec"
  fi
  wait_ready engine 60 engine_answers "$HOST"
}

start_registry() {
  local port user password
  port=$(port_of registry)
  REGISTRY=127.0.0.1:$port
  user=$(kept registry.user echo puller)
  password=$(kept registry.password random_text)
  REGISTRY_LOGIN=$user:$password
  if ! pid_of registry >/dev/null; then
    htpasswd -inB -C 4 "$user" <<<"$password" >"$STACK/registry/htpasswd" # 4: each request pays for the hash
    cat >"$STACK/registry/config.yml" <<YAML
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: $STACK/registry/data}
  delete: {enabled: true}
http: {addr: $REGISTRY, secret: $(kept registry.secret random_text)}
auth:
  htpasswd: {realm: stack, path: $STACK/registry/htpasswd}
YAML
    spawn registry "$STACK/opt/docker-registry" serve "$STACK/registry/config.yml"
  fi
  wait_ready registry 20 registry_answers
}
registry_answers() {
  [[ $(http_status "http://$REGISTRY/v2/") == 401 && $(http_status -u "$REGISTRY_LOGIN" "http://$REGISTRY/v2/") == 200 ]]
}

start_bao() { # NAME ARG…
  local name=$1
  shift
  pid_of "$name" >/dev/null || spawn "$name" env -i PATH="$PATH" HOME="$STACK/bao" \
    "$STACK/opt/bao" server -dev -dev-no-store-token -dev-root-token-id="$(kept "$name.token" random_text)" "$@"
}
bao_answers() { # NAME ADDRESS CURL-ARG…: with the token, which the server knows only some time after it listens
  [[ $(http_status -H "X-Vault-Token: $(<"$STACK/conf/$1.token")" "$2/v1/auth/token/lookup-self" "${@:3}") == 200 ]]
}
bao_tls_answers() {
  BAO_TLS_CA=$(echo "$STACK"/bao/tls/*-ca.pem) # the server chooses the name
  bao_answers bao-tls "$BAO_TLS_ADDR" --cacert "$BAO_TLS_CA"
}
start_baos() {
  local plain tls
  plain=127.0.0.1:$(port_of bao)
  tls=127.0.0.1:$(port_of bao-tls)
  BAO_ADDR=http://$plain BAO_TLS_ADDR=https://$tls
  mkdir -p "$STACK/bao/tls"
  start_bao bao -dev-listen-address="$plain"
  start_bao bao-tls -dev-tls -dev-tls-cert-dir="$STACK/bao/tls" -dev-listen-address="$tls"
  wait_ready bao 20 bao_answers bao "$BAO_ADDR"
  wait_ready bao-tls 20 bao_tls_answers
}

has_image() { [[ $(http_status -u "$REGISTRY_LOGIN" "http://$REGISTRY/v2/$1/manifests/$2") == 200 ]]; }

build_images() {
  local context=$STACK/build applet
  if has_image monky/tool 1 && has_image monky/web 1 && has_image monky/web 2; then return; fi
  rm -rf "$context"
  mkdir -p "$context"/{bin,etc,tmp,www}
  chmod 1777 "$context/tmp"
  cp "$STACK/opt/busybox" "$context/bin/busybox"
  "$context/bin/busybox" --list | while read -r applet; do
    [[ $applet == busybox ]] || ln -s busybox "$context/bin/$applet"
  done
  echo 'root:x:0:0:root:/:/bin/sh' >"$context/etc/passwd"
  # STOPSIGNAL: as process 1 busybox ignores TERM, and each stop would take ten seconds.
  cat >"$context/tool.Dockerfile" <<'DOCKER'
FROM scratch
COPY bin /bin
COPY etc /etc
COPY tmp /tmp
ENV PATH=/bin
STOPSIGNAL SIGKILL
CMD ["/bin/sh"]
DOCKER
  cat >"$context/web.Dockerfile" <<DOCKER
FROM $REGISTRY/monky/tool:1
COPY www /www
EXPOSE 8080
CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]
DOCKER
  push_images "$context" >"$STACK/log/images.log" 2>&1 9>&- || die_with_log images "not built or not pushed"
  rm -rf "$context"
}
# All in one chain, since 'set -e' means nothing left of '||'.
push_images() { # CONTEXT
  # A folder of its own: a credential left behind would make every pull a pull with password.
  local -x DOCKER_CONFIG=$1/.docker DOCKER_BUILDKIT=0
  build() { # CONTEXT IMAGE DOCKERFILE
    docker build -q -t "$REGISTRY/$2" -f "$1/$3" "$1" && docker push -q "$REGISTRY/$2"
  }
  docker login -u "${REGISTRY_LOGIN%%:*}" --password-stdin "$REGISTRY" <<<"${REGISTRY_LOGIN#*:}" &&
    build "$1" monky/tool:1 tool.Dockerfile &&
    echo 'web 1' >"$1/www/index.html" && build "$1" monky/web:1 web.Dockerfile &&
    echo 'web 2' >"$1/www/index.html" && build "$1" monky/web:2 web.Dockerfile &&
    # Without the local names a pull has to ask the registry.
    docker rmi "$REGISTRY/monky/web:2" "$REGISTRY/monky/web:1" "$REGISTRY/monky/tool:1"
}

# One docker_bin for each Compose version. A mount namespace of its own puts that version in the plugin's place: the client's
# real plugin mechanism with the machine untouched; exec all the way keeps pid, process group and signals. 'slave', so that what
# the engine unmounts goes away in there too. Absolute paths: the agent clears the environment.
write_wrappers() {
  local version target
  target=$(docker info --format '{{range .ClientInfo.Plugins}}{{if eq .Name "compose"}}{{.Path}}{{end}}{{end}}' 2>/dev/null)
  [[ -f $target ]] || die "compose: the client finds no Compose plugin to put another one over: run install.sh"
  for version in $(compose_versions); do
    cat >"$STACK/bin/.new" <<SH
#!/bin/sh
# The docker client with Compose $version as its plugin. Everything else of the machine is as it is.
exec $(command -v unshare) --mount --propagation slave $(command -v sh) -c \\
  '$(command -v mount) --bind "\$0" "\$1" && shift && exec "\$@"' \\
  '$STACK/compose/$version/docker-compose' '$target' '$(command -v docker)' "\$@"
SH
    chmod 755 "$STACK/bin/.new"
    mv "$STACK/bin/.new" "$STACK/bin/docker-$version" # in one step: a test may be running
    [[ $("$STACK/bin/docker-$version" compose version --short) == *"$version"* ]] || die "compose: $STACK/bin/docker-$version is not Compose $version"
  done
}

write_env() {
  cat >"$STACK/.env.new" <<ENV
STACK_DIR='$STACK'
STACK_DOCKER_HOST='$HOST'
STACK_REGISTRY='$REGISTRY'
STACK_REGISTRY_USER='${REGISTRY_LOGIN%%:*}'
STACK_REGISTRY_PASSWORD='${REGISTRY_LOGIN#*:}'
STACK_BAO_ADDR='$BAO_ADDR'
STACK_BAO_TOKEN='$(<"$STACK/conf/bao.token")'
STACK_BAO_TLS_ADDR='$BAO_TLS_ADDR'
STACK_BAO_TLS_TOKEN='$(<"$STACK/conf/bao-tls.token")'
STACK_BAO_TLS_CA='$BAO_TLS_CA'
STACK_COMPOSE_VERSIONS='$(compose_versions | paste -sd ' ')'
ENV
  mv "$STACK/.env.new" "$STACK/env"
}

trap 'rc=$?; ((rc == 0)) || rm -f "$STACK/env"' EXIT
start_engine
export DOCKER_HOST=$HOST
start_registry
start_baos
build_images
write_wrappers
write_env
say "up: engine $HOST, registry $REGISTRY, OpenBao $BAO_ADDR and $BAO_TLS_ADDR, Compose $(compose_versions | paste -sd ' ')"
echo "$STACK/env"
