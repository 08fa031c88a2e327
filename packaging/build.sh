#!/usr/bin/env bash
# Builds the Debian package and prints its path: build.sh [FOLDER, default target/package/deb].
# Invariant: the same sources give the same bytes, wherever and whenever it is run (SOURCE_DATE_EPOCH, else the commit's time).
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s inherit_errexit
export LC_ALL=C TZ=UTC
umask 022
out=$(realpath -m "${1:-target/package/deb}")
stage=target/package/stage # named in Cargo.toml

if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || { echo "build.sh: this is no git checkout: set SOURCE_DATE_EPOCH" >&2; exit 1; }
fi
export SOURCE_DATE_EPOCH

CARGO_DEB_VERSION=3.8.0
export PATH="$PWD/target/tools/bin:$PATH"
if [[ $(cargo-deb --version 2>/dev/null) != *" $CARGO_DEB_VERSION" ]]; then
  echo "build.sh: building cargo-deb $CARGO_DEB_VERSION into target/tools (some minutes, once)" >&2
  cargo install --quiet --locked --version "$CARGO_DEB_VERSION" --root target/tools cargo-deb >&2
fi

# MONKY_DEPLOYD_PACKAGED: a binary that packaging/binary.sh built already.
binary=${MONKY_DEPLOYD_PACKAGED:-$(packaging/binary.sh)}
rm -rf "$stage"
mkdir -p "$stage"/{man,completions} "$out"
install -m 755 "$binary" "$stage/monky-deployd"

# Each page, and each page that it refers to.
pages=(monky-deployd)
while ((${#pages[@]})); do
  page=${pages[0]}
  pages=("${pages[@]:1}")
  file=$stage/man/$page.1
  [[ ! -e $file ]] || continue
  words=${page#monky-deployd}
  # shellcheck disable=SC2086 # a list of commands
  "$stage/monky-deployd" man ${words//-/ } >"$file"
  mapfile -t -O "${#pages[@]}" pages < <(sed 's/\\-/-/g' "$file" | grep -oE '^monky-deployd(-[a-z]+)+\(1\)' | sed 's/(1)$//' || true)
done
for shell in bash zsh fish; do
  "$stage/monky-deployd" completions "$shell" >"$stage/completions/$shell"
done

# Only what is required: a conffile that changes with every new option would make dpkg ask on every box that was configured.
{
  echo "# Configuration of monky-deployd. These keys are required; the values are examples. Every other key, with its default, is in"
  echo "# /usr/share/doc/monky-deployd/examples/config.example.yaml. 'monky-deployd config check' says what is wrong here."
  echo
  # The required keys and their sections are the lines that are no comments.
  grep -E '^ *[a-z_]' config.example.yaml
} >"$stage/config.yaml"
"$stage/monky-deployd" --config "$stage/config.yaml" config check >/dev/null

maintainer=$(sed -n 's/^maintainer = "\(.*\)"$/\1/p' Cargo.toml)
awk -v maintainer="$maintainer" -v date="$(date -u -R -d "@$SOURCE_DATE_EPOCH")" -f packaging/changelog.awk CHANGELOG.md >"$stage/changelog"
cargo tree --locked --offline --no-default-features --edges normal --prefix none --format '{p} {l}' |
  sed 's/ (\(\/\|proc-macro\)[^)]*)//; s/ (\*)$//' | sort -u >"$stage/crates.txt"
cp packaging/*.service packaging/*.timer packaging/debian/lintian-overrides config.example.yaml "$stage"
# cargo-deb takes the files' own times.
find "$stage" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

cargo deb --locked --no-build --no-strip --quiet --output "$out/" >&2
version=$(sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
echo "$out/monky-deployd_${version}_$(dpkg --print-architecture).deb"
