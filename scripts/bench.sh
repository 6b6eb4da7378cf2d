#!/usr/bin/env bash
# Print one table of figures, each beside its floor or its reference. Needs root and no cluster running; leaves none.
#   ROUNDS=20 OBJECTS=10000   how many machines start in sequence, how many objects the API server holds
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "error: the benchmarks need root" >&2; exit 1; }
. scripts/cargo.sh
# What users run is what is measured: the release profile, also inside of the images.
PROFILE=release scripts/build.sh
bin/ferrovirt images build >/dev/null
cargo build --quiet --locked --release -p bench
# The API server is also measured within the program, with the setting which `ferrovirt up` starts it with.
GLIBC_TUNABLES=glibc.malloc.tcache_count=400 exec "$CARGO_TARGET_DIR/release/bench"
