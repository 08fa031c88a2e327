#!/usr/bin/env bash
# Which lines of src/fsm and src/effects are run by the suites that judge them; red below 95 %.
# Invariant: only suites that assert something about these lines are counted, none that runs them on the way.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo-tarpaulin >/dev/null || cargo install --locked cargo-tarpaulin
mkdir -p target/coverage
# Counters of children that are started in this folder.
trap 'rm -f ./*.profraw' EXIT
# LLVM's own counters are as exact, and a machine without ptrace has them too.
cargo tarpaulin --locked --engine llvm --lib --test transitions --test properties --test incidents --test replay --test compose_models --test inspected \
  --test bundle_sha --test env_round_trip --test corpora --include-files 'src/fsm/*' 'src/effects/*' --target-dir target/coverage/build \
  --out json --output-dir target/coverage --fail-under 95 -- --skip cli:: --skip drivers:: --skip sandbox:: --skip config::
