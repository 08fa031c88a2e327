#!/usr/bin/env bash
# The installer as an operator runs it, piped, with the real package on a real systemd: a fresh box is installed with --deb, its first
# tick deploys from the real registry and OpenBao; a second run changes nothing; downloads come from a registry played on loopback,
# with a token and without. OpenZiti is played by a stand-in that writes an identity and shows the process list: there is no real
# OpenZiti network here.
# shellcheck disable=SC2016 # for the shells in the box
# Invariant: every expectation can fail; the box and the plane are removed however this ends.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
DEB=${DEB:-$(find "$ROOT/target/package/deb" -name 'monky-deployd_*.deb' 2>/dev/null | sort | tail -n1)}
[[ -f $DEB ]] || die "no package: set DEB, or run tests/install/run.sh, which builds it"
use_stack
dir=$(mktemp -d)
box=""
registries=()
clean() {
  for pid in "${registries[@]}"; do kill "$pid" 2>/dev/null || true; done
  [[ -z $box ]] || "$HERE/box.sh" stop "$box" || true
  "$HERE/plane.sh" stop "$dir/plane" || true
  rm -rf "$dir"
}
trap clean EXIT

on() { docker exec -i "$box" "$@"; }
# Piped, as from curl; the flags are the arguments.
install_sh() { on bash -s -- "$@" <"$ROOT/packaging/install.sh" >"$dir/out" 2>&1; }
ends() { # STATUS COMMAND…
  local want=$1 got=0
  shift
  "$@" || got=$?
  [[ $got == "$want" ]] || { cat "$dir/out" >&2; die "ended with $got, not with $want: $*"; }
}
says() { grep -F -- "$1" "$dir/out" >/dev/null || { cat "$dir/out" >&2; die "it does not say: $1"; }; }
holds() { [[ $1 == "$2" ]] || { cat "$dir/out" >&2; die "$3: '$1', and must be '$2'"; }; }
ok() { say "ok: $*"; }
base64url() { base64 -w0 | tr '+/' '-_' | tr -d '='; }
jwt() { printf '%s.%s.CANARY-ENROL-signature\n' "$(printf '{"alg":"RS256"}' | base64url)" "$(printf '{"exp":%s}' "$1" | base64url)"; }
registry() { # [HEADER]: sets $port
  local at=$dir/port.${#registries[@]}.$RANDOM
  REGISTRY_HEADER=${1:-} python3 "$HERE/registry.py" "$dir/registry" "$dir/registry.log" "$at" >/dev/null 2>&1 &
  registries+=($!)
  wait_for 30 "the registry" test -s "$at"
  port=$(<"$at")
}
# What a second run must leave as it is: every file it may write, the units, and what systemd remembers of them.
state_of_the_box() {
  on sh -c 'find /etc /opt -xdev -type f -exec stat -c "%n %a %U %Y" {} + -exec sha256sum {} + | sort
    dpkg-query -W -f "\${Package} \${Version} \${db:Status-Abbrev}\n"
    systemctl show -p ActiveEnterTimestamp -p NRestarts -p UnitFileState monky-deployd.timer docker.service ziti-edge-tunnel.service'
}

box=$("$HERE/box.sh" start)
"$HERE/plane.sh" start "$dir/plane"
# shellcheck source=/dev/null
. "$dir/plane/env"
"$HERE/plane.sh" deploy "$dir/plane" 1 >/dev/null
"$HERE/box.sh" copy "$box" "$DEB" /root/package.deb
for file in bao-ca.pem bootstrap.jwt; do "$HERE/box.sh" copy "$box" "$dir/plane/$file" "/root/$file"; done
jwt $(($(date +%s) + 3600)) >"$dir/enrol.jwt"
"$HERE/box.sh" copy "$box" "$dir/enrol.jwt" /root/enrol.jwt
# The stand-in of OpenZiti: it writes open what it should not, and looks for secrets in the process list while the installer runs.
on sh -c 'cat >/usr/bin/ziti-edge-tunnel; chmod 755 /usr/bin/ziti-edge-tunnel' <<'STUB'
#!/bin/bash
[ "$1" = enroll ] || exec sleep infinity
tr '\0' ' ' </proc/1/cmdline >/dev/null && for p in /proc/[0-9]*; do tr '\0' ' ' <"$p/cmdline"; echo; done >/root/process-list 2>/dev/null
while [ $# -gt 0 ]; do case $1 in --identity) out=$2 ;; --jwt) cp "$2" /root/enrolled-with ;; esac; shift; done
umask 022
echo '{"ztAPI": "https://controller.example", "id": {"key": "k"}}' >"$out"
STUB
on sh -c 'cat >/etc/systemd/system/ziti-edge-tunnel.service; systemctl daemon-reload' <<'UNIT'
[Service]
ExecStart=/usr/bin/ziti-edge-tunnel run
[Install]
WantedBy=multi-user.target
UNIT
flags=(--env "$PLANE_ENV_ID" --site cbs --tenancy-host 127.0.0.1 --tenancy-port "$PLANE_TENANCY_PORT" --bao-addr "$PLANE_BAO_ADDR" --bao-ca /root/bao-ca.pem
  --bootstrap-file /root/bootstrap.jwt --enrol-jwt /root/enrol.jwt --set tenancy.scheme=http --set "bao.auth_mount=$PLANE_BAO_AUTH_MOUNT"
  --set "bao.kv_mount=$PLANE_BAO_KV_MOUNT" --set "registry_host=$PLANE_REGISTRY" --set healthy_timeout_s=60 --set stable_s=1)

# ---- What is refused, before anything is changed; on a box where nothing runs from /tmp
on mount -t tmpfs -o noexec tmpfs /tmp
before=$(state_of_the_box)
jwt $(($(date +%s) - 3600)) >"$dir/old.jwt"
"$HERE/box.sh" copy "$box" "$dir/old.jwt" /root/old.jwt
ends 1 install_sh "${flags[@]}" --deb /root/package.deb --enrol-jwt /root/old.jwt
says "/root/old.jwt expired at"
says "Nothing was changed."
on mv /usr/libexec/docker/cli-plugins/docker-compose /root/compose
ends 1 install_sh "${flags[@]}" --deb /root/package.deb
says "/usr/libexec/docker/cli-plugins/docker-compose"
on mv /root/compose /usr/libexec/docker/cli-plugins/docker-compose
on mv /usr/bin/ziti-edge-tunnel /root/ziti-edge-tunnel
ends 1 install_sh "${flags[@]}" --deb /root/package.deb --ziti-key-url https://openziti.invalid/key.gpg
says "OpenZiti's repository could not be reached"
says "--no-tunneler"
says "Nothing was changed."
on mv /root/ziti-edge-tunnel /usr/bin/ziti-edge-tunnel
mkdir -p "$dir/registry/generic/monky-deployd/0.2.0"
cp "$DEB" "$dir/registry/generic/monky-deployd/0.2.0/monky-deployd_0.2.0_amd64.deb"
published=$dir/registry/generic/monky-deployd/0.2.0/monky-deployd_0.2.0_amd64.deb.sha256
printf '%064d  monky-deployd_0.2.0_amd64.deb\n' 0 >"$published"
registry
ends 1 install_sh "${flags[@]}" --version 0.2.0 --gitea-url "http://127.0.0.1:$port/generic"
says "and must be 0000"
says "Nothing was changed."
ends 1 install_sh "${flags[@]}" --deb /root/package.deb --set colour=blue
says "colour"
says "Nothing was changed."
ends 0 install_sh "${flags[@]}" --deb /root/package.deb --dry-run
says "would enable and start monky-deployd.timer"
holds "$(state_of_the_box)" "$before" "a refusal or a dry run changed something"
ok "an expired token, a missing Compose plugin, an unreachable repository, a wrong checksum, a wrong key and a dry run change nothing"

# ---- A fresh box
status=0
install_sh "${flags[@]}" --deb /root/package.deb --token CANARY-TOKEN || status=$?
# 3: `check` found something, which is judged by its own tests.
[[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "the installation ended with $status"; }
says "==> store the bootstrap grant"
holds "$(on systemctl is-enabled monky-deployd.timer)" enabled "the timer"
holds "$(on stat -c '%a %U' /etc/monky-deployd/config.yaml /etc/monky-deployd/bao-ca.pem /opt/openziti/etc/identities/monky-"$PLANE_ENV_ID".json | paste -sd' ')" "644 root 644 root 600 root" "modes"
holds "$(on stat -c '%a %U' /var/lib/monky-deployd)" "700 monky-deployd" "the state directory"
holds "$(on cat /root/enrolled-with)" "$(cat "$dir/enrol.jwt")" "the enrolment token"
holds "$(on cat /opt/openziti/etc/identities/monky-"$PLANE_ENV_ID".json)" '{"ztAPI": "https://controller.example", "id": {"key": "k"}}' "the identity"
on test -e /etc/ssl/certs/bao-ca.pem && die "the CA is believed by the whole system"
[[ -n $(on cat /root/process-list) ]] || die "the process list was not looked at"
# Of the box's own processes; the test's client has the flags in its arguments outside.
! on grep -E 'CANARY|eyJ' /root/process-list || die "a secret is in the process list"
holds "$(on sh -c 'ls -A /tmp /var/lib | grep -c monky-install' || true)" 0 "what is left of temporary files"
# The package's example is nothing to keep, and dpkg had nothing to put beside it.
holds "$(on sh -c 'ls /etc/monky-deployd | grep config')" config.yaml "configurations"
is_applied() { on runuser -u monky-deployd -- monky-deployd status --format json | grep -E '"last_result": ?"applied"'; }
wait_for 180 "the timer's first ticks deploy" is_applied
ok "installed from a pipe with --deb; the timer deployed"

# ---- Again
before=$(state_of_the_box)
status=0
install_sh "${flags[@]}" --deb /root/package.deb || status=$?
[[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "the second run ended with $status"; }
says "Nothing had to be changed."
holds "$(state_of_the_box)" "$before" "a second run changed something"
ok "a second run changed no file, no time of a file, no package, and restarted nothing"

# ---- To the next version and back, with that one flag
on sh -e <<'BOX'
dpkg-deb -R /root/package.deb /root/next
sed -i 's/^Version: .*/Version: 99.0.0/' /root/next/DEBIAN/control
dpkg-deb -b /root/next /root/next.deb >/dev/null
BOX
config=$(on sha256sum /etc/monky-deployd/config.yaml)
for version in 99.0.0:next 0.2.0:package; do
  status=0
  install_sh --deb "/root/${version#*:}.deb" || status=$?
  [[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "to ${version%:*}: ended with $status"; }
  holds "$(on dpkg-query -W -f '${db:Status-Status} ${Version}' monky-deployd)" "installed ${version%:*}" "the version"
  holds "$(on sha256sum /etc/monky-deployd/config.yaml)" "$config" "the configuration after ${version%:*}"
  holds "$(on systemctl is-active monky-deployd.timer)" active "the timer after ${version%:*}"
done
is_applied >/dev/null || die "the state is lost"
ok "upgraded and went back; configuration and state stayed"

# ---- A timer that somebody stopped
for how in stop "disable --now"; do
  # shellcheck disable=SC2086 # two words
  on systemctl -q $how monky-deployd.timer
  units=$(on systemctl show -p ActiveState -p UnitFileState monky-deployd.timer)
  status=0
  install_sh --deb /root/package.deb --reinstall || status=$?
  [[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "with a stopped timer: ended with $status"; }
  says "is left so. To start it: systemctl enable --now monky-deployd.timer"
  holds "$(on systemctl show -p ActiveState -p UnitFileState monky-deployd.timer)" "$units" "the timer after $how"
  on systemctl -q enable --now monky-deployd.timer
done
ok "a timer that was stopped or disabled is left so"

# ---- A package that cannot be installed, with a new key: the agent that stays keeps the configuration that it knows
on sh -e <<'BOX'
printf '#!/bin/sh\nexit 1\n' >/root/next/DEBIAN/preinst
chmod 755 /root/next/DEBIAN/preinst
dpkg-deb -b /root/next /root/broken.deb >/dev/null
BOX
ends 1 install_sh --deb /root/broken.deb --set keep_releases=9
says "the package could not be installed"
says "install monky-deployd 99.0.0 over 0.2.0 (begun, and not ended)"
holds "$(on sha256sum /etc/monky-deployd/config.yaml)" "$config" "the configuration after a package that failed"
holds "$(on systemctl is-active monky-deployd.timer)" active "the timer after a package that failed"
ok "a package that fails leaves the configuration as it was"

# ---- From a registry
(cd "${published%/*}" && sha256sum monky-deployd_0.2.0_amd64.deb >"$published")
for source in gitlab gitea none; do
  header=""
  token=CANARY-TOKEN
  case $source in
    gitlab) header="Deploy-Token: $token" ;;
    gitea) header="Authorization: token $token" ;;
    none) token="" ;;
  esac
  registry "$header"
  : >"$dir/registry.log"
  on sh -c 'printf "%s\n" "$1" >/root/token' sh "$token"
  on dpkg --remove monky-deployd >/dev/null 2>&1
  from=$source
  [[ $from != none ]] || from=gitea
  status=0
  install_sh --source "$from" "--$from-url" "http://127.0.0.1:$port/generic" --token-file /root/token --version 0.2.0 || status=$?
  [[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "from $source: ended with $status"; }
  holds "$(on dpkg-query -W -f '${db:Status-Status} ${Version}' monky-deployd)" "installed 0.2.0" "from $source"
  holds "$(grep -c CANARY-TOKEN "$dir/registry.log" || true)" "$([[ -n $token ]] && echo 2 || echo 0)" "requests with the token, from $source"
  holds "$(on systemctl is-active monky-deployd.timer)" active "the timer, from $source"
  ! grep -F CANARY "$dir/out" >/dev/null || die "it prints the token"
done
ok "from GitLab's and Gitea's generic packages, with the header that each knows; without a token none is sent"

# ---- Another state directory
unit=/etc/systemd/system/monky-deployd.service.d
status=0
install_sh --set state_dir=/srv/monky --set healthy_timeout_s=900 || status=$?
[[ $status == 0 || $status == 3 ]] || { cat "$dir/out" >&2; die "another state directory: ended with $status"; }
holds "$(on stat -c '%a %U' /srv/monky "$unit/configuration.conf" | paste -sd' ')" "700 monky-deployd 644 root" "modes of another state directory"
holds "$(on systemctl show -p TimeoutStartUSec -p NeedDaemonReload --value monky-deployd.service | paste -sd' ')" "50min no" "what systemd knows of it"
wait_for 180 "the unit writes there" on test -s /srv/monky/state.json
before=$(state_of_the_box)
status=0
install_sh --set state_dir=/srv/monky || status=$?
says "Nothing had to be changed."
holds "$(state_of_the_box)" "$before" "a second run changed something"
on env DEBIAN_FRONTEND=noninteractive apt-get -qq purge -y monky-deployd >/dev/null 2>&1
holds "$(on sh -c "ls -d $unit /etc/monky-deployd 2>/dev/null" || true)" "" "what a purge leaves"
ok "another state directory is made, the unit writes there, and a purge takes the drop-in"
