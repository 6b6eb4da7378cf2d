#!/usr/bin/env bash
# All tests: the repository's rules, every crate's tests, then on this machine a live cluster: it comes and goes without a trace, it
# does what plain kubectl expects, and real guests run on it.
#   scripts/test.sh            everything
#   scripts/test.sh unit       without the live cluster
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo.sh
begin=$SECONDS
step() { echo "== $1 (after $((SECONDS - begin)) s)"; }

step "rules of the repository"
# Of the same packages as below: of itself alone, cargo would build anew what they share.
cargo build --quiet --locked --workspace --exclude e2e --bin xtask
"$CARGO_TARGET_DIR/debug/xtask" tidy
step "tests of every crate"
# Many of them wait more than they compute.
RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --quiet --locked --workspace --exclude e2e
[ "${1:-}" != unit ] || exit 0

# From here on the machine itself is used: its addresses, its interfaces, its containerd.
[ "$(id -u)" = 0 ] || { echo "error: the tests of the cluster need root; \`scripts/test.sh unit\` runs the others" >&2; exit 1; }
# A state of its own, so that a cluster with somebody's machines is never touched.
if bin/ferrovirt status 2>/dev/null | grep -q '^control plane *running' && [ -z "${CI:-}" ]; then
    echo "error: a cluster runs on this machine; the tests need the same addresses" >&2
    echo "hint: make down, then make test" >&2
    exit 1
fi
bin/ferrovirt down >/dev/null 2>&1 || true
export FERROVIRT_STATE=/var/lib/ferrovirt-test
finish() { bin/ferrovirt down --purge || true; }
trap finish EXIT
bin/ferrovirt down --purge >/dev/null 2>&1 || true

# Whatever a cluster could leave behind on its host.
traces() {
    ip -o link | awk -F': ' '{ print "link", $2 }'
    ip -4 route show; ip -6 route show | sed 's/ expires .*//'
    nft list tables
    awk '{ print "mount", $2 }' /proc/self/mounts
    find /sys/fs/cgroup -type d -name '*ferrovirt*'
    for name in net/ipv4/ip_forward net/ipv6/conf/all/forwarding fs/inotify/max_user_instances; do echo "$name $(cat /proc/sys/$name)"; done
    for process in /proc/[0-9]*; do [ "$(readlink "$process/exe")" != "$PWD/bin/ferrovirt" ] || echo "process $process"; done
}

step "a cluster comes and goes"
cargo test --quiet --locked --workspace --exclude e2e --test machine
before=$(traces | sort)
step "images"
bin/ferrovirt images build
step "quotas of file systems, in a guest"
scripts/quota.sh
step "devices of containers on version 2 of control groups, in a guest"
scripts/devices.sh
step "a cluster"
bin/ferrovirt up
step "the cluster, by kubectl"
cargo test --quiet --locked -p e2e --test cluster
step "the cluster, by clients in Python and Rust"
cargo test --quiet --locked -p e2e --test clients
step "scenarios with real guests"
cargo test --quiet --locked -p e2e --test scenarios
step "nothing is left behind"
bin/ferrovirt down --purge
diff <(echo "$before") <(traces | sort) || { echo "error: this is left of the cluster on its host" >&2; exit 1; }
step "done"
