#!/usr/bin/env bash
# links.sh BINARY: which dynamic libraries it needs, and which glibc. Fails if it needs more than what every supported
# distribution has: glibc 2.35 (Ubuntu 22.04), and nothing but glibc's own libraries and libgcc_s.
set -euo pipefail
binary=${1:?usage: links.sh BINARY}
most=2.35

needed=$(readelf --dynamic "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | paste -sd' ')
newest=$(readelf --version-info "$binary" | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n1)
echo "links to             ${needed:-nothing: it is static}"
echo "glibc needed         ${newest:-none} (at most $most)"

bad=0
for library in $needed; do
    case $library in
        libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libgcc_s.so.1 | ld-linux-*.so.*) ;;
        *)
            echo "$library is not on every box"
            bad=1
            ;;
    esac
done
if [ -n "$newest" ] && [ "$(printf '%s\n' "$newest" "$most" | sort -V | tail -n1)" != "$most" ]; then
    echo "these need more than glibc $most:"
    readelf --wide --dyn-syms "$binary" | grep -F "GLIBC_$newest" | sed 's/^.* //'
    bad=1
fi
exit $bad
