#!/usr/bin/env bash
# Fuzzes each target for a while, two at a time: tests/fuzz.sh [SECONDS [TARGET…]]. `make fuzz` gives each 60 s.
# Invariant: what is found is kept: an input that fails is left in fuzz/artifacts, and to be committed to fuzz/corpus once it is mended.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(find fuzz/fuzz_targets -name '*.rs' -printf '%f\n' | sed 's/\.rs$//' | sort)
cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
rustup toolchain list | grep -q ^nightly || { echo "fuzzing needs a nightly toolchain: rustup toolchain install nightly" >&2; exit 1; }
cargo +nightly fuzz build
mkdir -p target/fuzz
one() { # TARGET: new inputs go to a folder of their own, not to the committed corpus
  mkdir -p "target/fuzz/$1"
  if cargo +nightly fuzz run "$1" "target/fuzz/$1" "fuzz/corpus/$1" -- -max_total_time="$2" -timeout=5 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 >"target/fuzz/$1.log" 2>&1; then
    awk -v name="$1" '/number_of_executed_units/ { runs = $2 } /cov:/ { for (i = 1; i <= NF; i++) if ($i == "cov:") cov = $(i + 1) }
      END { printf "%-14s %10d inputs, %5d edges, nothing found\n", name, runs, cov }' "target/fuzz/$1.log"
  else
    tail -n 30 "target/fuzz/$1.log" >&2
    echo "$1: found something, see above; the input is in fuzz/artifacts/$1"
    return 1
  fi
}
export -f one
printf '%s\n' "${targets[@]}" | xargs -P 2 -I TARGET bash -euo pipefail -c 'one TARGET '"$seconds"
