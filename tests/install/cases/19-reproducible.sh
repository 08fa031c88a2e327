#!/usr/bin/env bash
# The same sources in another folder, with another target folder, give the same package, to the byte.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
use_package
cd "$ROOT"
dir=$(mktemp -d "${TMPDIR:-/tmp}/monky-elsewhere.XXXXXX")
trap 'rm -rf "$dir"' EXIT
git ls-files -z | tar --null -T - -c | tar -x -C "$dir"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PATH="$ROOT/target/tools/bin:$PATH"
umask 077
other=$(cd "$dir" && CARGO_TARGET_DIR="$dir/other-target" packaging/build.sh)
echo "$(sha256sum <"$DEB") here"
echo "$(sha256sum <"$other") elsewhere"
holds "both are the same, to the byte" cmp "$DEB" "$other"
