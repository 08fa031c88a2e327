#!/usr/bin/env bash
# What is released, in target/release-files: the package and its checksum. release.sh, or 'make release'.
# Invariant: nothing is released whose version has no dated entry in CHANGELOG.md, or stands elsewhere differently.
set -euo pipefail
cd "$(dirname "$0")/.."

packaging/versions.sh --check
version=$(sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
if ! grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; then
  echo "release.sh: the entry of $version in CHANGELOG.md has no date: write '## [$version] - $(date -u +%F)'" >&2
  exit 1
fi
out=target/release-files
rm -rf "$out"
package=$(packaging/build.sh "$out")
# Once for people, once as install.sh asks a registry for it: beside the package, by its name.
(cd "$out" && sha256sum "$(basename "$package")" | tee SHA256SUMS >"$(basename "$package").sha256")
cat "$out/SHA256SUMS"
