#!/usr/bin/env bash
# Builds the agent as packages are built, and measures it. Invariant: a stack that was up before stays up, one that was
# started here is stopped again; nothing here passes or fails by a time. Arguments name parts: checkin, apply, machine,
# replay; none: all of them.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${STACK:-on}" = off ]; then
    echo "STACK=off: without the real stack, so without the unchanged tick and the apply."
elif [ -z "${STACK_ENV:-}" ]; then
    if ! ./tests/stack/can.sh; then
        echo "Measure elsewhere, or without the unchanged tick and the apply: STACK=off make bench."
        exit 1
    fi
    was_up=yes
    [ -f target/stack/env ] || was_up=no
    ./tests/stack/install.sh
    if [ "$was_up" = no ]; then
        trap './tests/stack/down.sh' EXIT
    fi
    ./tests/stack/up.sh
fi

agent=$(./packaging/binary.sh)
# In a folder of its own: it is built with the stand-ins, and would overwrite the agent without them.
cargo bench --locked --no-run --bench ratios --target-dir target/bench

most=$((4 * 1024 * 1024))
size=$(stat -c %s "$agent")
echo
echo "the stripped binary of the package"
echo "  size                 $size bytes, $((size * 100 / most)) % of the goal of 4 MiB"
./tests/links.sh "$agent" | sed 's/^/  /'

MONKY_DEPLOYD_BIN=$agent cargo bench --locked --bench ratios --target-dir target/bench -- "$@"
