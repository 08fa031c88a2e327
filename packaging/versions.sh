#!/usr/bin/env bash
# The version stands in Cargo.toml. Other files that need it have it in a line that says 'by packaging/versions.sh'.
#   versions.sh --check     fails, and says where, when one of them differs (or CHANGELOG.md has no entry)
#   versions.sh --write     mends them
# Invariant: --check only reads.
set -euo pipefail
cd "$(dirname "$0")/.."

MARK='by packaging/versions.sh'
# Those that must have such a line, if they are there at all.
FILES=(packaging/install.sh ansible/roles/monky_deployd/defaults/main.yml)
version=$(sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "versions.sh: no version in Cargo.toml" >&2; exit 1; }

case ${1:-} in
  --check)
    bad=0
    for file in "${FILES[@]}"; do
      [[ -e $file ]] || continue
      lines=$(grep -n "$MARK" "$file" || true)
      if [[ -z $lines ]]; then
        echo "versions.sh: $file has no line with '$MARK'" >&2
        bad=1
      elif grep -vqF "$version" <<<"$lines"; then
        echo "versions.sh: $file is not at $version: run packaging/versions.sh --write" >&2
        bad=1
      fi
    done
    if ! grep -qF "## [$version]" CHANGELOG.md; then
      echo "versions.sh: CHANGELOG.md has no entry for $version: add '## [$version] - DATE'" >&2
      bad=1
    fi
    exit $bad
    ;;
  --write)
    for file in "${FILES[@]}"; do
      [[ ! -e $file ]] || sed -i -E "/${MARK//\//\\/}/s/[0-9]+\.[0-9]+\.[0-9]+/$version/" "$file"
    done
    ;;
  *)
    echo "usage: versions.sh --check | --write" >&2
    exit 2
    ;;
esac
