#!/usr/bin/env bash
# Runs the suites that take minutes, and prints each figure with the command that gives it.
# Invariant: whatever is killed or stopped here was started here: the engine is a second one, in a network namespace that
# exists only as long as this runs, and nobody else's engine is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
log=target/soak.log
mkdir -p target

if [ "${1:-}" != inside ]; then
    if ! ./tests/stack/can.sh; then
        echo "The real stack cannot run here, and the soak is made of it."
        exit 1
    fi
    # The programs are those of the usual stack; what runs of it is left alone.
    ./tests/stack/install.sh
    cargo build --locked --release --no-default-features
    cargo test --locked --no-run
    # Its own network: the engine's bridge and rules clash with no other's, and the ports are all free.
    exec unshare --net ./tests/soak.sh inside
fi

ip link set lo up
programs=$(realpath "${STACK_DIR:-target/stack}")
export STACK_DIR=$PWD/target/soak
unset DOCKER_HOST STACK
mkdir -p "$STACK_DIR"
ln -sfn "$programs/opt" "$STACK_DIR/opt"
ln -sfn "$programs/compose" "$STACK_DIR/compose"
# A DOCKER_HOST of its own, or an engine that listens at the usual socket would be taken for this one.
export DOCKER_HOST=unix://$STACK_DIR/run/docker.sock
trap './tests/stack/down.sh' EXIT
./tests/stack/up.sh

export STACK_ENV=$STACK_DIR/env INSTA_UPDATE=no
export MONKY_DEPLOYD_BIN=$PWD/target/release/monky-deployd

: >"$log"
figures=()
# Runs a command and keeps the lines in which it tells what it did.
run() { # PATTERN COMMAND…
    local pattern=$1 from
    shift
    from=$(wc -l <"$log")
    printf '\n== %s\n' "$*" | tee -a "$log"
    "$@" 2>&1 | tee -a "$log"
    # What ran no test has no figures.
    figures+=("$*" "$(tail -n "+$((from + 1))" "$log" | grep -E "$pattern")")
    tail -n "+$((from + 1))" "$log" | grep -E '^test result: ok\. [1-9]' >/dev/null
}

began=$SECONDS
run 'kill:|^test result' cargo test --locked --test kill -- --include-ignored --nocapture --test-threads 4 agent::
# By themselves: nobody else may need the engine.
run 'kill:|^test result' cargo test --locked --test kill -- --ignored --nocapture --test-threads 1 engine::
# The binary of the other suites has the stand-ins in it.
unset MONKY_DEPLOYD_BIN
run '^docker:|^test result' cargo test --locked --test docker_worst -- --nocapture
run 'states|^test result' cargo test --locked --test model -- --include-ignored --nocapture
run '^test result' env PROPTEST_CASES="${PROPTEST_CASES:-5000}" cargo test --locked --test properties

printf '\nThe soak took %s s. What was done:\n' $((SECONDS - began))
for ((i = 0; i < ${#figures[@]}; i += 2)); do
    printf '\n$ %s\n%s\n' "${figures[i]}" "${figures[i + 1]}"
done
