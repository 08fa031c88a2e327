#!/usr/bin/env bash
# Runs every suite. Invariant: the real stack's suites run, or this fails and says why; a stack that was up before
# stays up, one that was started here is stopped again, however the suites end.
set -euo pipefail
cd "$(dirname "$0")/.."
log=target/test.log
mkdir -p target

if [ "${STACK:-on}" = off ]; then
    echo "STACK=off: without the real stack. Not run: $(cd tests && grep -l 'STACK_ENV\|rig::\|path = "stack/\|path = "kill/' ./*.rs | xargs -n1 basename | sed 's/\.rs$//' | paste -sd' ')."
else
    if ! ./tests/stack/can.sh; then
        echo "The real stack cannot run here, so these suites cannot: stack, kill, plan, docker_real, contract_bao (real half)."
        echo "Run elsewhere, or leave them out on purpose with STACK=off make test."
        exit 1
    fi
    if [ -z "${STACK_ENV:-}" ]; then
        was_up=yes
        [ -f target/stack/env ] || was_up=no
        ./tests/stack/install.sh
        if [ "$was_up" = no ]; then
            trap './tests/stack/down.sh' EXIT
        fi
        ./tests/stack/up.sh
    fi
fi

echo "The tests that are ignored take minutes or kill an engine (tests/kill.rs): make soak."
# A snapshot that differs is a failure, never an update. Much of the real stack is waiting, so more tests than cores run.
export INSTA_UPDATE=no RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}"
cargo test --locked --no-fail-fast 2>&1 | tee "$log"
