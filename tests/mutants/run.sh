#!/usr/bin/env bash
# Tries every mutant of src/fsm. Red if one survives that survivors.txt does not explain, or if that list names one that does not survive.
# Invariant: the list is what is not found, no more and no less.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v cargo-mutants >/dev/null || cargo install --locked cargo-mutants
out=target/mutants
mkdir -p "$out"
# A case that fails is enough: nobody reads it, so it is not made smaller.
# Survivors are told by exit status 2, mutants that hang by 3: both are looked at below.
rc=0
export PROPTEST_CASES="${PROPTEST_CASES:-32}" PROPTEST_MAX_SHRINK_ITERS=0
INSTA_UPDATE=no cargo mutants -p core-mutants --test-package core-mutants -o "$out" --copy-target false -j "${JOBS:-1}" || rc=$?
[[ $rc == 0 || $rc == 2 || $rc == 3 ]] || exit $rc
# Without line and column, which move with every edit.
names() { sed -E 's/^.*\.\.\/\.\.\/(src[^:]*):[0-9]+:[0-9]+: /\1: /' | sort -u; }
names <"$out/mutants.out/missed.txt" >"$out/survived"
{ grep -vE '^(#|$| )' tests/mutants/survivors.txt || true; } | sort -u >"$out/explained"
if ! diff -u "$out/explained" "$out/survived"; then
  echo "A line with + is a mutant that no test finds: write the test, or explain it in tests/mutants/survivors.txt. One with - is found now: take it out."
  exit 1
fi
echo "mutants: $(wc -l <"$out/mutants.out/caught.txt") found, $(wc -l <"$out/mutants.out/timeout.txt") hang and are found by that, $(wc -l <"$out/survived") survive and are explained, $(wc -l <"$out/mutants.out/unviable.txt") do not compile"
