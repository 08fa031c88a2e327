#!/usr/bin/env bash
# The core knows no clock, no file, no network, no environment, no randomness, no process, and not the drivers.
# Clippy denies the calls (clippy.toml); this looks for the words, test modules left out.
set -euo pipefail
cd "$(dirname "$0")/.."
words='SystemTime|Instant::now|std::(fs|net|process|env|thread)|rand::|RandomState|tracing::|println!|\.unwrap\(\)|\.expect\(|HashMap|HashSet|crate::drivers|crate::cli|crate::sandbox'
bad=0
while IFS= read -r file; do
    # Everything from the test module on is no part of the core.
    found=$(awk '/^#\[cfg\(test\)\]/ { exit } { print FILENAME ":" FNR ": " $0 }' "$file" | grep -E "$words" | grep -vE '^[^:]+:[0-9]+: *//' || true)
    if [ -n "$found" ]; then
        printf '%s\n' "$found"
        bad=1
    fi
done < <(find src/fsm src/effects -name '*.rs' | sort)
if [ "$bad" -ne 0 ]; then
    echo "The core is to be pure: let an effect do it, and a driver carry it out."
    exit 1
fi
echo "src/fsm and src/effects are pure."
