#!/usr/bin/env bash
# What is in the package, what it depends on, and what lintian and systemd-analyze say. No box.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
use_package
need lintian
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
dpkg-deb -R "$DEB" "$dir"

for file in usr/bin/monky-deployd lib/systemd/system/monky-deployd.{service,timer} lib/systemd/system/monky-deployd-proxy.service \
  etc/monky-deployd/config.yaml usr/share/man/man1/monky-deployd{,-tick,-config-show}.1.gz \
  usr/share/bash-completion/completions/monky-deployd usr/share/zsh/vendor-completions/_monky-deployd \
  usr/share/fish/vendor_completions.d/monky-deployd.fish \
  usr/share/doc/monky-deployd/{copyright,changelog.gz,crates.txt,examples/config.example.yaml}; do
  holds "$file is in it" test -s "$dir/$file"
done
field() { dpkg-deb -f "$DEB" "$1"; }
says "the version is that of Cargo.toml" "$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml" | head -n 1)" field Version
says "its changelog tells of this version" "monky-deployd ($(field Version))" zcat "$dir/usr/share/doc/monky-deployd/changelog.gz"
says "only the configuration is a conffile" /etc/monky-deployd/config.yaml cat "$dir/DEBIAN/conffiles"
holds "and nothing else is" test "$(wc -l <"$dir/DEBIAN/conffiles")" = 1

agent=$dir/usr/bin/monky-deployd
says "the stand-ins are not in it" "unrecognized subcommand" "$agent" demo
all_pages() {
  local page
  for page in $(zcat "$dir"/usr/share/man/man1/*.gz | sed 's/\\-/-/g' | grep -oE '^monky-deployd(-[a-z]+)+\(1\)' | sed 's/(1)$//' | sort -u); do
    [[ -s $dir/usr/share/man/man1/$page.1.gz ]] || { echo "$page.1 is missing"; return 1; }
  done
}
holds "every page that a man page refers to is there" all_pages
for section in FILES ENVIRONMENT '"EXIT STATUS"'; do
  says "the man page has $section" ".SH $section" zcat "$dir/usr/share/man/man1/monky-deployd.1.gz"
done
holds "the shipped configuration is valid, once its examples are replaced" "$agent" --config "$dir/etc/monky-deployd/config.yaml" config check

# Debian 12 has glibc 2.36, Ubuntu 22.04 has 2.35, 24.04 has 2.39.
newest_glibc=$(objdump -T "$agent" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
echo "needs $newest_glibc; $(stat -c %s "$agent") bytes"
holds "it needs no glibc newer than Ubuntu 22.04's" test "$(printf '%s\nGLIBC_2.35\n' "$newest_glibc" | sort -V | tail -n 1)" = GLIBC_2.35
echo "Depends: $(field Depends)"
only_known() { field Depends | tr ',' '\n' | sed 's/^ *//' | grep -vE '^(adduser|libc6 \(>= 2\.(1?[0-9]|2[0-9]|3[0-5])\)|libgcc-s1( \(>= [0-9.]+\))?)$' && return 1 || return 0; }
holds "it depends on what all three have" only_known

# Not as root where it can be helped: lintian says so, and nothing else.
holds "lintian is content" lintian --fail-on error,warning "$DEB"

units=$dir/lib/systemd/system
# The manual is not installed here, and the tunneler need not be anywhere.
sed -i 's#^ExecStart=/usr/bin/\(monky-deployd\|ziti\)#ExecStart=/bin/true#; /^Documentation=/d' "$units"/*.service "$units"/*.timer
for unit in monky-deployd.service monky-deployd-proxy.service; do
  holds "$unit is valid" systemd-analyze verify "$units/$unit"
  holds "$unit is exposed by 1.3 at most" systemd-analyze security --offline=true --threshold=13 "$units/$unit"
done
holds "the timer is valid" systemd-analyze verify "$units/monky-deployd.timer"
holds "versions agree" "$ROOT/packaging/versions.sh" --check
holds "shellcheck is content" shellcheck -x "$ROOT"/packaging/*.sh "$ROOT"/packaging/debian/{postinst,prerm,postrm} "$ROOT"/tests/install/*.sh "$ROOT"/tests/install/cases/*.sh
