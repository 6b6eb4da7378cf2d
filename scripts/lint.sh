#!/usr/bin/env bash
# What every change must be free of: unformatted code, compiler and clippy warnings, and what `xtask tidy` finds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo.sh
echo "== format"
cargo fmt --all --check
echo "== clippy: programs and libraries"
cargo clippy --quiet --locked --workspace --exclude bench --exclude e2e --lib --bins -- -D warnings
echo "== clippy: tests and benchmarks, which may spawn, sleep, read clocks, panic, and take documents by value"
cargo clippy --quiet --locked --workspace --all-targets -- -D warnings \
    -A clippy::disallowed_methods -A clippy::panic -A clippy::needless_pass_by_value
echo "== tidy"
cargo xtask tidy
