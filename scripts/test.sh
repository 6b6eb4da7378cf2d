#!/usr/bin/env bash
# All tests: the repository's rules, every crate's tests, then scenarios with real guests on a live cluster.
#   scripts/test.sh            everything
#   scripts/test.sh unit       without the live cluster
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-/var/cache/ferrovirt/target}
begin=$SECONDS
step() { echo "== $1 (after $((SECONDS - begin)) s)"; }

step "rules of the repository"
cargo xtask tidy
step "tests of every crate"
cargo test --quiet --locked --workspace --exclude e2e
[ "${1:-}" != unit ] || exit 0

step "scenarios with real guests"
[ "$(id -u)" = 0 ] || { echo "error: the scenarios need root" >&2; exit 1; }
# A state of its own, so that a cluster with somebody's machines is never touched.
if bin/ferrovirt status 2>/dev/null | grep -q '^control plane *running' && [ -z "${CI:-}" ]; then
    echo "error: a cluster runs on this machine; the scenarios need the same addresses" >&2
    echo "hint: make down, then make test" >&2
    exit 1
fi
bin/ferrovirt down >/dev/null 2>&1 || true
export FERROVIRT_STATE=/var/lib/ferrovirt-test
finish() { bin/ferrovirt down --purge || true; }
trap finish EXIT
bin/ferrovirt down --purge >/dev/null 2>&1 || true
bin/ferrovirt images build
bin/ferrovirt up
cargo test --quiet --locked -p e2e
step "done"
