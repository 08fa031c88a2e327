#!/usr/bin/env bash
# The Ansible role on a real box: nothing there, first run, second run, changes, proxy, secrets, removal.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
use_stack
[[ -r ${DEB:-} ]] || die "DEB must name the package: tests/install/run.sh builds it"

bin=$("$ROOT/tests/ansible/venv.sh")
export LC_ALL=C.UTF-8 # Ansible takes no other
dir=$(mktemp -d "${TMPDIR:-/tmp}/role.XXXXXXXX")
box="" registry=""
finish() {
  local status=$?
  [[ -z $registry ]] || kill "$registry" 2>/dev/null || true
  [[ -z $box ]] || "$HERE/box.sh" stop "$box" || true
  "$HERE/plane.sh" stop "$dir/plane" || true
  if ((status == 0)); then rm -rf "$dir"; else say "what was said is in $dir"; fi
}
trap finish EXIT

in_box() { docker exec -i "$box" "$@"; }
as_agent() { in_box runuser -u monky-deployd -- monky-deployd "$@"; }
status_of() { # JSON-PATH, as Python reads it
  as_agent status --format json | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"
}

# ---- What there is: a control plane, a registry of packages, a box

"$HERE/plane.sh" start "$dir/plane"
sha=$("$HERE/plane.sh" deploy "$dir/plane" 1)
# shellcheck source=/dev/null
. "$dir/plane/env"
random_name >"$dir/token"
token=$(<"$dir/token")

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n1)
deb=monky-deployd_${version}_$(dpkg --print-architecture).deb
mkdir "$dir/packages"
cp "$DEB" "$dir/packages/$deb"
(cd "$dir/packages" && sha256sum "$deb" >"$deb.sha256")
"$ROOT/tests/ansible/registry.py" "$dir/packages" "$dir/token" "$dir/port" "$dir/requests" "$dir/processes" &
registry=$!
wait_for 10 "the registry's start" test -s "$dir/port"
port=$(<"$dir/port")

box=$("$HERE/box.sh" start)

# ---- An inventory of one box, its secrets in a vault

mkdir -p "$dir/inventory/group_vars/all" "$dir/inventory/host_vars"
printf 'boxes:\n  hosts:\n    %s:\n      ansible_connection: community.docker.docker\n      ansible_python_interpreter: /usr/bin/python3\n' "$box" >"$dir/inventory/hosts.yml"
"$bin/python3" "$ROOT/tests/ansible/vars.py" "$dir/plane/config.yaml" >"$dir/inventory/group_vars/all/configuration.json"
{
  echo "monky_deployd_gitlab_url: http://127.0.0.1:$port/api/v4/projects/7/packages/generic"
  echo "monky_deployd_gitea_url: http://127.0.0.1:$port/api/packages/monky/generic/"
  echo "monky_deployd_bao_ca: \"{{ lookup('ansible.builtin.file', '$dir/plane/bao-ca.pem') }}\""
} >"$dir/inventory/group_vars/all/box.yml"
random_name >"$dir/vault-password"
vault() { # GRANT
  printf 'monky_deployd_download_token: %s\nmonky_deployd_bootstrap_grant: %s\n' "$token" "$1" |
    "$bin/ansible-vault" encrypt --vault-password-file "$dir/vault-password" --output "$dir/inventory/group_vars/all/vault.yml" 2>/dev/null
}
vault "$(<"$dir/plane/bootstrap.jwt")"

runs=0
# Runs the role; more variables as JSON. Its words are in $dir/run-N, and in $last.
role() { # [ANSIBLE-ARG…]
  runs=$((runs + 1))
  last=$dir/run-$runs
  ANSIBLE_ROLES_PATH=$ROOT/ansible/roles ANSIBLE_PIPELINING=true ANSIBLE_NOCOLOR=1 ANSIBLE_HOST_KEY_CHECKING=false ANSIBLE_HOME=$dir/ansible \
    "$bin/ansible-playbook" -i "$dir/inventory/hosts.yml" --vault-password-file "$dir/vault-password" "$@" "$ROOT/tests/ansible/play.yml" >"$last" 2>&1
}
fine() { role "$@" || { tail -n 40 "$last" >&2; die "the role failed: $last"; }; }
changed() { sed -n 's/^.* changed=\([0-9]*\).*/\1/p' "$last"; }
# Which tasks changed something, one a line.
changes() { awk '/^(TASK|RUNNING HANDLER) \[/ { task = $0; sub(/^.*\[monky_deployd : /, "", task); sub(/\].*/, "", task) } /^changed:/ { print task }' "$last" | sort -u | paste -sd,; }
only() { # TASKS, joined by a comma
  [[ $(changes) == "$1" ]] || { tail -n 60 "$last" >&2; die "changed: '$(changes)', should be '$1'"; }
}
# What of the box's own files is there and how: what no run may touch without saying so.
files() {
  in_box find /etc /usr /opt /var/lib /var/cache /root -xdev \( -path /root/.ansible -o -path /var/lib/systemd -o -path '*/__pycache__' \) -prune -o -type f -printf '%p %s %T@ %m %u\n' | sort
}
in_output() { grep -qF -- "$1" "$last" || { cat "$last" >&2; die "not said: $1"; }; }

# ---- A wrong value

say "a wrong word is refused before anything is done, and the right ones are named"
files >"$dir/bare"
if role -e monky_deployd_transport=foo; then die "transport: foo was taken"; fi
in_output "value of monky_deployd_transport must be one of: system, proxy, sdk, got: foo"
if role -e monky_deployd_tenancy_port=many; then die "tenancy_port: many was taken"; fi
in_output "monky_deployd_tenancy_port"
if role -e monky_deployd_gitlab_url=; then die "a package came from nowhere"; fi
in_output "set monky_deployd_gitlab_url to download it"
if role -e monky_deployd_gitlab_url=http://registry.example; then die "a token was sent in the clear"; fi
in_output "plain http"
files | diff "$dir/bare" - >&2 || die "a run that was refused changed the box"

# ---- Check mode where nothing is

say "check mode on a bare box fails not, changes nothing, and shows the configuration"
fine --check --diff
only "Say that it would be downloaded,Say what a first run would write"
in_output "env_id: \\\"$PLANE_ENV_ID\\\""
fine --check --diff -e monky_deployd_deb="$DEB"
[[ ! -s $dir/requests ]] || die "check mode downloaded"
files | diff "$dir/bare" - >&2 || die "check mode changed the box"

# ---- A download that cannot be

say "a download that cannot be says why"
if role -e monky_deployd_download_token=wrong-token-of-nobody; then die "a wrong token was enough"; fi
in_output "401"
if role -e monky_deployd_version=9.9.9; then die "9.9.9 is there"; fi
in_output "/monky-deployd/9.9.9/monky-deployd_9.9.9_"
if role -e "monky_deployd_deb_sha256=$(printf '0%.0s' {1..64})"; then die "another checksum was taken"; fi
in_output "did not match"
files | diff "$dir/bare" - >&2 || die "a download that failed left something"

# ---- The first run

say "the first run installs, and the timer's first tick deploys"
: >"$dir/requests"
# The first one may have ended by now.
grant=$("$HERE/plane.sh" ask "$dir/plane" grant)
vault "$grant"
fine -vvv --diff
grep -q "^302 /api/v4/projects/7/.*/$deb\$" "$dir/requests" || die "not downloaded from GitLab: $(<"$dir/requests")"
grep -q "^200 /store/$deb\$" "$dir/requests" || die "not downloaded from the store: $(<"$dir/requests")"
applied() { [[ $(status_of 's["applied"]["sha"] if s["applied"] else None') == "$sha" ]]; }
wait_for 300 "the first tick's deploy" applied
as_agent history --format json >"$dir/history"
python3 -c 'import json, sys
last = [json.loads(line) for line in open(sys.argv[1])][-1]
assert (last["outcome"], last["exit"], last["sha"]) == ("applied", 0, sys.argv[2]), last' "$dir/history" "$sha" || die "history says something else"
docker ps --filter "label=com.docker.compose.project=$PLANE_PROJECT" --format '{{.Status}}' | grep -q healthy || die "no healthy container"
as_agent config show >"$dir/shown"
docker cp "$dir/plane/config.yaml" "$box:/tmp/plane.yaml" >/dev/null
in_box monky-deployd --config /tmp/plane.yaml config show | diff - "$dir/shown" >&2 || die "the configuration is not what was given"
in_box diff - /etc/monky-deployd/bao-ca.pem <"$dir/plane/bao-ca.pem" || die "the CA is not what was given"
in_box systemctl is-enabled monky-deployd.timer >/dev/null || die "the timer is not enabled"

# ---- Again

say "a second run changes nothing, with the grant given and with none"
in_box sha256sum /var/lib/monky-deployd/token.json >"$dir/token.before"
: >"$dir/requests"
fine --diff
only ""
[[ $(changed) == 0 && ! -s $dir/requests ]] || die "the second run changed $(changed) and asked $(<"$dir/requests")"
fine -e monky_deployd_bootstrap_grant= -e monky_deployd_download_token=
only ""
fine --check --diff
only ""
in_box sha256sum /var/lib/monky-deployd/token.json | diff "$dir/token.before" - || die "the token is another one"
[[ $(status_of 's["bootstrap_waits"]') == False ]] || die "the grant was stored again"

say "another grant is stored, once; one that is none is refused with the agent's words"
"$HERE/plane.sh" ask "$dir/plane" grant >"$dir/grant2"
printf '{"monky_deployd_bootstrap_grant": "%s"}' "$(<"$dir/grant2")" >"$dir/grant2.json"
in_box systemctl stop monky-deployd.timer
# Whoever looks at the box's processes when the grant is handed over sees no more than this.
in_box sh -c 'cat >/usr/local/sbin/runuser && chmod 755 /usr/local/sbin/runuser' <<'SH'
#!/bin/sh
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' >>/root/processes
exec /usr/sbin/runuser "$@"
SH
fine -vvv --diff -e "@$dir/grant2.json"
in_box rm /usr/local/sbin/runuser
in_box cat /root/processes >"$dir/processes.box"
grep -q -- "bootstrap --grant-file -" "$dir/processes.box" || die "the box's processes were not looked at"
only "Give the grant to the agent,Remember which one it was,Start the timer"
fine -e "@$dir/grant2.json"
only ""
if role -e monky_deployd_bootstrap_grant=no-grant; then die "a word was taken for a grant"; fi
in_output "does not hold one; a grant is a JWT"

# ---- Changes

say "a changed key changes the configuration and nothing else; check mode shows it first"
started=$(in_box systemctl show -p ActiveEnterTimestampMonotonic monky-deployd.timer)
none=(-e monky_deployd_bootstrap_grant=)
fine "${none[@]}" --check --diff -e monky_deployd_site=elsewhere
only "Write the configuration"
in_output '+site: "elsewhere"'
as_agent config show | diff "$dir/shown" - || die "check mode wrote the configuration"
fine "${none[@]}" -e monky_deployd_site=elsewhere
only "Write the configuration"
as_agent config show | grep -qx 'site: elsewhere' || die "the key did not arrive"
[[ $(in_box systemctl show -p ActiveEnterTimestampMonotonic monky-deployd.timer) == "$started" ]] || die "the timer was started again"

say "what the agent does not take is not written, and the agent's words are shown"
before=$(in_box sha256sum /etc/monky-deployd/config.yaml)
if role "${none[@]}" -e '{"monky_deployd_tenancy_port": 70000}'; then die "port 70000 was taken"; fi
in_output "tenancy.port: must be a whole number from 1 to 65535"
[[ $(in_box sha256sum /etc/monky-deployd/config.yaml) == "$before" ]] || die "the configuration was written"

say "longer timeouts reach the unit"
fine "${none[@]}" -e '{"monky_deployd_healthy_timeout_s": 900}'
only "Fit the unit to the configuration,Write the configuration"
[[ $(in_box systemctl show -p TimeoutStartUSec --value monky-deployd.service) == 50min ]] || die "the unit's limit is $(in_box systemctl show -p TimeoutStartUSec --value monky-deployd.service)"

say "they reach it also after a run that broke off when the drop-in was written"
drop_ins=/etc/systemd/system/monky-deployd.service.d
in_box sed -i s/=3000/=2640/ "$drop_ins/configuration.conf"
[[ $(in_box systemctl show -p TimeoutStartUSec --value monky-deployd.service) == 50min ]] || die "systemd read it by itself"
fine "${none[@]}" -e '{"monky_deployd_healthy_timeout_s": 720}'
only "Write the configuration"
[[ $(in_box systemctl show -p TimeoutStartUSec --value monky-deployd.service) == 44min ]] || die "systemd has not read it"
fine "${none[@]}" -e '{"monky_deployd_healthy_timeout_s": 720}'
only ""

# ---- Proxy

say "with transport: proxy the tunneler is given its services and identity, and carries a tick"
"$HERE/box.sh" copy "$box" "$ROOT/tests/ansible/ziti" /usr/bin/ziti
free() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
near=$(free) far=$(free) key=$(random_name)
cat >"$dir/proxy.json" <<JSON
{
  "monky_deployd_bootstrap_grant": "",
  "monky_deployd_transport": "proxy",
  "monky_deployd_proxy_tenancy": "127.0.0.1:$near",
  "monky_deployd_proxy_bao": "127.0.0.1:$far",
  "monky_deployd_ziti_services": ["tenancy:$near", "bao:$far"]
}
JSON
before=$(in_box sha256sum /etc/monky-deployd/config.yaml)
if role -e "@$dir/proxy.json"; then die "a tunneler without an identity was taken"; fi
in_output "This box has no OpenZiti identity /etc/monky-deployd/identity.json."
[[ $(in_box sha256sum /etc/monky-deployd/config.yaml) == "$before" ]] || die "the configuration was written"
printf '{"monky_deployd_ziti_identity": {"id": {"key": "%s"}, "stub": {"tenancy": %s, "bao": %s}}}' \
  "$key" "$PLANE_TENANCY_PORT" "${PLANE_BAO_ADDR##*:}" >"$dir/identity.json"
fine -vvv --diff -e "@$dir/proxy.json" -e "@$dir/identity.json"
only "Fit the unit to the configuration,Name the services,Start, restart or stop the tunneler,Write the configuration,Write the identity"
in_box systemctl is-enabled monky-deployd-proxy.service >/dev/null || die "the tunneler is not enabled"
[[ $(in_box stat -c '%a %U' /etc/monky-deployd/identity.json) == "600 root" ]] || die "the identity is open to others"
as_agent config show | grep -q "^transport: proxy$" || die "the transport is another one"
wait_for 60 "the tunneler listens" in_box bash -c "exec 3<>/dev/tcp/127.0.0.1/$near"
as_agent tick >"$dir/tick" 2>&1 || { cat "$dir/tick" >&2; die "no tick through the tunneler"; }
grep -q unchanged "$dir/tick" || die "a tick through the tunneler said $(<"$dir/tick")"
fine -e "@$dir/proxy.json"
only ""
in_box cp /etc/monky-deployd/proxy.env /root/proxy.env
pid=$(in_box systemctl show -p MainPID --value monky-deployd-proxy.service)
fine -e "@$dir/proxy.json" -e "{\"monky_deployd_ziti_services\": [\"tenancy:$near\", \"bao:$far\", \"bao:$(free)\"]}"
only "Name the services,Start, restart or stop the tunneler"
[[ $(in_box systemctl show -p MainPID --value monky-deployd-proxy.service) != "$pid" ]] || die "the tunneler does not know its new service"
pid=$(in_box systemctl show -p MainPID --value monky-deployd-proxy.service)
# A run that broke off when the file was written.
in_box cp /root/proxy.env /etc/monky-deployd/proxy.env
fine -e "@$dir/proxy.json"
only "Start, restart or stop the tunneler"
[[ $(in_box systemctl show -p MainPID --value monky-deployd-proxy.service) != "$pid" ]] || die "the tunneler has still the services of a run that broke off"
fine -e "@$dir/proxy.json"
only ""

say "without it the tunneler is stopped, and does not come back"
fine "${none[@]}"
only "Start, restart or stop the tunneler,Write the configuration"
! in_box systemctl is-enabled monky-deployd-proxy.service >/dev/null || die "the tunneler is still enabled"
! in_box systemctl is-active monky-deployd-proxy.service >/dev/null || die "the tunneler still runs"

# ---- No secret anywhere

say "no secret in what was said with -vvv --diff, nor in any process's arguments"
for secret in "$token" "$grant" "$(<"$dir/grant2")" "$key"; do
  ! grep -lF -- "$secret" "$dir"/run-* || die "a secret was said"
  ! grep -qF -- "$secret" "$dir/processes" "$dir/processes.box" || die "a secret was an argument"
done
grep -q "ansible-playbook.*$dir" "$dir/processes" || die "the processes were not looked at"

# ---- Removal

say "removal takes the agent and leaves what it brought up; state stays until a purge"
in_box sh -c "echo '[Service]' >$drop_ins/own.conf"
fine "${none[@]}" -e monky_deployd_state=absent --check
fine "${none[@]}" -e monky_deployd_state=absent
[[ $(in_box ls -A "$drop_ins") == own.conf ]] || die "of the drop-ins there is: $(in_box ls -A "$drop_ins")"
[[ $(in_box systemctl show -p DropInPaths --value monky-deployd.service) != *configuration.conf* ]] || die "systemd still knows the drop-in"
! in_box test -e /usr/bin/monky-deployd || die "the program is still there"
! in_box systemctl cat monky-deployd.timer >/dev/null 2>&1 || die "the timer is still there"
in_box test -s /var/lib/monky-deployd/token.json || die "the state is gone"
docker ps --filter "label=com.docker.compose.project=$PLANE_PROJECT" --format '{{.Status}}' | grep -q healthy || die "the containers went too"
fine "${none[@]}" -e monky_deployd_state=absent
only ""
in_box rm "$drop_ins/own.conf"
fine "${none[@]}" -e monky_deployd_state=absent
only "Remove its folder, if it is empty"
fine "${none[@]}" -e monky_deployd_state=absent
only ""

say "installed again, from the mirror, without any token: the box goes on with the state it had"
: >"$dir/requests"
again=@$(date +%s)
fine "${none[@]}" -e monky_deployd_source=gitea -e monky_deployd_download_token=
grep -q "^200 /api/packages/monky/.*/$deb\$" "$dir/requests" || die "not from the mirror: $(<"$dir/requests")"
unchanged() { in_box journalctl -u monky-deployd --since "$again" -o cat | grep -q unchanged; }
wait_for 300 "a tick that finds nothing to do" unchanged
fine "${none[@]}" -e monky_deployd_deb="$DEB"
fine "${none[@]}" -e monky_deployd_deb="$DEB"
only ""

fine "${none[@]}" -e '{"monky_deployd_state": "absent", "monky_deployd_purge": true}'
for path in /var/lib/monky-deployd /etc/monky-deployd /var/cache/monky-deployd.deb "$drop_ins"; do
  ! in_box test -e "$path" || die "$path is still there"
done
fine "${none[@]}" -e '{"monky_deployd_state": "absent", "monky_deployd_purge": true}'
only ""
say "another state directory is made, and the unit may write there"
fine "${none[@]}" -e monky_deployd_deb="$DEB" -e monky_deployd_state_dir=/srv/monky
wait_for 300 "a tick that writes there" in_box test -s /srv/monky/state.json
fine "${none[@]}" -e monky_deployd_deb="$DEB" -e monky_deployd_state_dir=/srv/monky
only ""
say "$runs runs of the role"
