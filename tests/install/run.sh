#!/usr/bin/env bash
# The tests of the installation: builds the package, then runs cases/*.sh in order; run.sh BEGINNING… runs only those.
# Invariant: a case that did not run is a failure; a stack that was up before stays up.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

if [[ ! -r $STACK_ENV ]]; then
  tests/stack/can.sh || die "the installation cannot be tested here"
  trap 'tests/stack/down.sh' EXIT
  tests/stack/install.sh
  tests/stack/up.sh
fi
export STACK_ENV
for tool in lintian shellcheck; do need "$tool"; done
tests/install/box.sh build >/dev/null
# DEB: a package that is there already.
if [[ -z ${DEB:-} ]]; then
  say "building the package"
  DEB=$(packaging/build.sh)
fi
export DEB
say "package $DEB"

failed=() ran=0
for file in tests/install/cases/*.sh; do
  name=$(basename "$file" .sh)
  if (($#)); then
    wanted=no
    for beginning; do [[ $name != "$beginning"* ]] || wanted=yes; done
    [[ $wanted == yes ]] || continue
  fi
  started=$SECONDS
  ran=$((ran + 1))
  if bash "$file" 2>&1 | sed -u "s/^/  /"; then
    echo "case $name: ok ($((SECONDS - started)) s)"
  else
    echo "case $name: FAILED ($((SECONDS - started)) s)"
    failed+=("$name")
  fi
done
((ran > 0)) || die "no such case: $*"
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
echo "installation: $ran cases passed"
