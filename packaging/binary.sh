#!/usr/bin/env bash
# Builds the binary that is packaged and prints its path: without the stand-ins, the same bytes wherever it is built.
# Invariant: no path of this machine gets into it.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target/package}
triple=$(rustc -vV | sed -n 's/^host: //p')
cargo_home=$(realpath "${CARGO_HOME:-$HOME/.cargo}")
sysroot=$(rustc --print sysroot)
# The last that fits wins.
flags=(--remap-path-prefix="$sysroot=/rust" --remap-path-prefix="$cargo_home=/cargo" --remap-path-prefix="$PWD=/source"
  --remap-path-prefix="$target=/target")
CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "${flags[@]}")
CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
export CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR=$target
# The same for what is C.
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$target=/target"
# Less is inlined, and functions with the same code are one (Rust promises no function an address of its own): 110 KB less.
# --target: build scripts are built without these flags.
cargo rustc --locked --release --no-default-features --bin monky-deployd --target "$triple" -- \
  -C link-arg=packaging/no-unwind.ld -C link-arg=-Wl,--no-eh-frame-hdr -C link-arg=-Wl,--icf=all \
  -C llvm-args=-inline-threshold=5 >&2
echo "$target/$triple/release/monky-deployd"
