#!/usr/bin/env bash
# Can the real stack run here? Exits 0, or prints one line for each reason and exits 1.
# Invariant: it changes nothing.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"

can=0
no() {
  echo "no real stack here: $*"
  can=1
}

family=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") || family=
[[ " $family " == *" debian "* || " $family " == *" ubuntu "* ]] || no "neither Debian nor Ubuntu"
command -v apt-get >/dev/null || no "apt-get is missing"
case $(uname -m) in
  x86_64 | aarch64) ;;
  *) no "OpenBao has no build for $(uname -m)" ;;
esac
if [[ $(id -u) != 0 ]]; then
  no "root is needed for the engine and for mount namespaces"
elif ! unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null; then
  no "mounting is not allowed (a container without the capability?)"
fi
exit $can
