#!/usr/bin/env bash
# The package goes onto a box that has no Docker yet, and Docker may come later.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
use_package
box=$("$HERE/box.sh" start --no-docker)
trap '"$HERE/box.sh" stop "$box"' EXIT
in_box() { "$HERE/box.sh" exec "$box" "$@"; }
"$HERE/box.sh" copy "$box" "$DEB" /root/package.deb
holds "there is no group docker" in_box sh -c '! getent group docker'
holds "it can be installed" in_box apt-get -qq install -y --no-install-recommends /root/package.deb
says "the group is made, and the agent is in it" "(docker)" in_box id monky-deployd
holds "nothing of it has failed" in_box sh -c 'systemctl is-system-running | grep -qx running'
# The optional listeners, with a tunneler that only says how it was called.
# shellcheck disable=SC2016 # the stand-in's own
in_box sh -c 'printf "#!/bin/sh\necho \"called: \$*\"; cat \"\$4\"; sleep 60\n" >/usr/bin/ziti && chmod 755 /usr/bin/ziti
  umask 077; echo "the identity" >/etc/monky-deployd/identity.json; echo "SERVICES=tenancy:8441 bao:8442" >/etc/monky-deployd/proxy.env
  systemctl start monky-deployd-proxy.service'
listeners() { in_box journalctl -u monky-deployd-proxy.service -o cat; }
wait_for 120 "the listeners were started" sh -c "'$HERE/box.sh' exec '$box' journalctl -u monky-deployd-proxy.service -o cat | grep -q 'the identity'"
says "each service is an argument of its own" "identity.json tenancy:8441 bao:8442 --svcPollRate 15" listeners
says "it runs under its hardening" active in_box systemctl is-active monky-deployd-proxy.service
says "and is not enabled by itself" disabled in_box systemctl is-enabled monky-deployd-proxy.service
