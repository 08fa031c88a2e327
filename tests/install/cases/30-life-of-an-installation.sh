#!/usr/bin/env bash
# A fresh box: install, configure, bootstrap; the timer's first tick deploys, under the unit's hardening, from the real registry and
# the real OpenBao; upgrades between ticks and in the middle of one; removal; purge.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
use_stack
use_package
dir=$(mktemp -d)
box=
cleanup() {
  local rc=$?
  if ((rc != 0)) && [[ -n $box ]]; then
    echo "the journal's end:"
    in_box journalctl --no-pager -n 40 -u monky-deployd.service -u monky-deployd.timer || true
  fi
  [[ -z $box ]] || "$HERE/box.sh" stop "$box" || true
  "$HERE/plane.sh" stop "$dir/plane" || true
  rm -rf "$dir"
}
trap cleanup EXIT
plane() { local verb=$1; shift; "$HERE/plane.sh" "$verb" "$dir/plane" "$@"; }
in_box() { "$HERE/box.sh" exec "$box" "$@"; }
agent() { in_box sudo -u monky-deployd monky-deployd "$@"; }
web() { docker ps -q --no-trunc --filter "label=com.docker.compose.project=$PLANE_PROJECT"; }
install_deb() { in_box env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$1" </dev/null; }

plane start
# shellcheck source=/dev/null
. "$dir/plane/env"
box=$("$HERE/box.sh" start)
"$HERE/box.sh" copy "$box" "$DEB" /root/first.deb
# The next version: the same files under a higher number, for a second build would take minutes and differ in nothing else.
dpkg-deb -R "$DEB" "$dir/next"
sed -i 's/^Version: .*/&+1/' "$dir/next/DEBIAN/control"
dpkg-deb --root-owner-group -b "$dir/next" "$dir/next.deb" >/dev/null
sed -i 's/+1$/+2/' "$dir/next/DEBIAN/control"
dpkg-deb --root-owner-group -b "$dir/next" "$dir/last.deb" >/dev/null
for version in next last; do "$HERE/box.sh" copy "$box" "$dir/$version.deb" "/root/$version.deb"; done

says "the installation says what is left to do" "systemctl enable --now monky-deployd.timer" install_deb /root/first.deb
says "the agent has a user, in the group docker" "(docker)" in_box id monky-deployd
says "the state directory is its own" "monky-deployd monky-deployd 700" in_box stat -c '%U %G %a' /var/lib/monky-deployd
says "the timer waits for a configuration" disabled in_box systemctl is-enabled monky-deployd.timer
says "nothing runs" inactive in_box systemctl is-active monky-deployd.timer

holds "a unit's hardening is in force in this box" in_box sh -c '! systemd-run -q --wait -p ProtectSystem=strict touch /etc/touched 2>/dev/null && ! test -e /etc/touched'
# An upgrade takes a minute on a busy machine; the deploy that it comes into the middle of must have the time.
sed -i 's/^healthy_timeout_s: .*/healthy_timeout_s: 600/' "$dir/plane/config.yaml"
"$HERE/box.sh" copy "$box" "$dir/plane/config.yaml" /etc/monky-deployd/config.yaml
"$HERE/box.sh" copy "$box" "$dir/plane/bao-ca.pem" /etc/monky-deployd/bao-ca.pem
agent bootstrap --grant-file - <"$dir/plane/bootstrap.jwt" >/dev/null
first=$(plane deploy 1 1)
in_box systemctl enable --now monky-deployd.timer
reported() { plane ask reports | grep -q "\"result\":\"applied\".*\"sha\":\"$1\""; }
wait_for 300 "the timer's first tick has deployed" reported "$first"
echo "ok: the timer's first tick deployed $first"
wait_for 300 "that tick has ended" in_box sh -c '! systemctl is-active monky-deployd.service | grep -q activating'
says "the unit did not fail" "Result=success" in_box systemctl show -p Result monky-deployd.service
says "status tells it" "$first" agent status --format json
says "history tells it" '"outcome":"applied"' agent history --format json
says "the journal tells it" "applied ${first:0:12}" in_box journalctl -u monky-deployd.service -o cat
holds "one container runs" test "$(web | wc -l)" = 1
running=$(web)
says "it has its secret" "GREETING=hello from OpenBao" docker inspect --format '{{.Config.Env}}' "$running"
holds "and the journal has not" in_box sh -c '! journalctl -u monky-deployd.service | grep -q "hello from OpenBao"'

ticks() { plane ask checkins | wc -l; }
more_ticks() { (($(ticks) > $1)); }
before=$(ticks)
pid_of_timer=$(in_box systemctl show -p ActiveEnterTimestampMonotonic monky-deployd.timer)
install_deb /root/next.deb >/dev/null
says "the upgrade is in place" "+1" in_box dpkg-query -W monky-deployd
says "configuration is kept" "env_id: $PLANE_ENV_ID" in_box cat /etc/monky-deployd/config.yaml
says "state is kept" "$first" agent status --format json
says "the timer is still enabled" enabled in_box systemctl is-enabled monky-deployd.timer
holds "and was started anew" test "$pid_of_timer" != "$(in_box systemctl show -p ActiveEnterTimestampMonotonic monky-deployd.timer)"
wait_for 300 "the timer goes on after the upgrade" more_ticks "$before"
echo "ok: the timer goes on after the upgrade"
holds "the container was not touched" test "$running" = "$(web)"

# A deploy that cannot become healthy by itself for some seconds, so that the upgrade comes in its middle.
cat >"$dir/slow.yaml" <<'YAML'
services:
  web:
    image: @web:2
    environment: {GREETING: "${GREETING}"}
    healthcheck: {test: [CMD, test, -e, /tmp/ready], interval: 1s, retries: 300}
YAML
slow=$(plane deploy 2 "$dir/slow.yaml")
in_tick() { [[ -n $(web) && $(web) != "$running" && $(in_box systemctl is-active monky-deployd.service) == activating ]]; }
wait_for 300 "a tick is in the middle of the next deploy" in_tick
pid=$(in_box systemctl show -p MainPID --value monky-deployd.service)
install_deb /root/last.deb >/dev/null
says "the upgrade in the middle of a tick is in place" "+2" in_box dpkg-query -W monky-deployd
says "the tick was left to go on" "$pid" in_box systemctl show -p MainPID --value monky-deployd.service
docker exec "$(web)" touch /tmp/ready
wait_for 300 "it has finished its deploy" reported "$slow"
echo "ok: and has finished its deploy"
holds "in one attempt" test "$(plane ask reports | grep -c "$slow")" = 1
wait_for 300 "that tick has ended" in_box sh -c '! systemctl is-active monky-deployd.service | grep -q activating'
before=$(ticks)
wait_for 300 "the timer goes on after that" more_ticks "$before"
echo "ok: the timer goes on after that"

running=$(web)
in_box apt-get -qq remove -y monky-deployd </dev/null >/dev/null
says "removal ends the timer" inactive in_box systemctl is-active monky-deployd.timer
holds "and disables it" in_box sh -c '! ls /etc/systemd/system/*.wants/ | grep monky'
holds "the container runs on" test "$running" = "$(web)"
holds "state and configuration are kept" in_box test -s /var/lib/monky-deployd/state.json -a -s /etc/monky-deployd/config.yaml
before=$(ticks)

install_deb /root/last.deb >/dev/null
says "installed again it does not start by itself" inactive in_box systemctl is-active monky-deployd.timer
says "and still knows what is applied" "$slow" agent status --format json
holds "no tick came meanwhile" test "$(ticks)" = "$before"

# One drop-in is made of the configuration, the other is somebody's own.
drop_ins=/etc/systemd/system/monky-deployd.service.d
in_box sh -c "mkdir -p $drop_ins && echo '[Service]' | tee $drop_ins/configuration.conf >$drop_ins/own.conf"
in_box apt-get -qq purge -y monky-deployd </dev/null >/dev/null
says "purge takes the drop-in that the configuration gave, and no other" own.conf in_box ls -A "$drop_ins"
holds "the first is gone" in_box test ! -e "$drop_ins/configuration.conf"
holds "purge removes state, configuration and user" in_box sh -c '! ls -d /var/lib/monky-deployd /etc/monky-deployd 2>/dev/null && ! getent passwd monky-deployd && ! getent group monky-deployd'
says "but not the group of Docker" docker in_box getent group docker
holds "the container still runs on" test "$running" = "$(web)"
