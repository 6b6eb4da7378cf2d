#!/usr/bin/env bash
# Run each fuzz target (fuzz/fuzz_targets) for a while on what was learnt before. A finding fails, and says how to repeat it.
#   scripts/fuzz.sh [TARGET…]      FUZZ_SECONDS: how long each runs (600)
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
[ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
seconds=${FUZZ_SECONDS:-600}
# Apart from everything else that is built: these are instrumented.
export CARGO_TARGET_DIR=${FUZZ_TARGET_DIR:-/var/cache/ferrovirt/fuzz}
learnt=$CARGO_TARGET_DIR/inputs
all=$(ls fuzz_targets | sed 's/\.rs$//')
for target in "$@"; do
    [ -e "fuzz_targets/$target.rs" ] || { echo "error: there is no fuzz target $target" >&2; echo "hint: one of" $all >&2; exit 2; }
done
[ $# -gt 0 ] || set -- $all
triple=x86_64-unknown-linux-gnu
# Counters of edges and comparisons, which steer the fuzzer. They are flags of LLVM's, so that any toolchain has them.
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
echo "building $# fuzz targets"
cargo build --quiet --release --target $triple $(printf -- '--bin %s ' "$@")
for target in "$@"; do
    echo "== $target, for $seconds s"
    mkdir -p "$learnt/$target" "$CARGO_TARGET_DIR/findings"
    log=$CARGO_TARGET_DIR/$target.log
    if ! "$CARGO_TARGET_DIR/$triple/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$CARGO_TARGET_DIR/findings/$target-" "$learnt/$target" > "$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "error: $target found something; its input is in $CARGO_TARGET_DIR/findings" >&2
        echo "hint: $CARGO_TARGET_DIR/$triple/release/$target FILE repeats it" >&2
        exit 1
    fi
    tail -n 1 "$log"
done
echo "each target ran for $seconds s; nothing was found"
