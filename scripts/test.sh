#!/usr/bin/env bash
# All tests: the repository's rules, every crate's tests, then on this machine a live cluster: it comes and goes without a trace, it
# does what plain kubectl expects, and real guests run on it.
#   scripts/test.sh            what every change must pass
#   scripts/test.sh all        that, and what takes long by nature; the result is written to bin/test-all.txt
#   scripts/test.sh unit       without the live cluster
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo.sh
which=${1:-}
case $which in '' | all | unit) ;; *) echo "error: unknown argument $which" >&2; echo "hint: scripts/test.sh [all | unit]" >&2; exit 2 ;; esac
begin=$SECONDS
# One line for each part and for each live test: seconds, and what took them.
export E2E_TIMES=$(mktemp)
current= since=$begin
part() { [ -z "$current" ] || echo "$((SECONDS - since)) == $current" >> "$E2E_TIMES"; current=$1 since=$SECONDS; }
# The part that is under way.
failed_in=
step() { part "$1"; failed_in=$1; echo "== $1 (after $((SECONDS - begin)) s)"; }
longest() { echo "what took longest, in seconds:"; { sort -rn "$E2E_TIMES" | head -n 40 | sed 's/^/  /'; } || true; rm -f "$E2E_TIMES"; }
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
result() { mkdir -p bin; echo "$1: make test-all at $commit, $(date -u '+%F %R') UTC, $(((SECONDS - begin) / 60)) min" > bin/test-all.txt; cat bin/test-all.txt; }
live=
finish() {
    local code=$?
    trap - EXIT
    part ''
    [ -z "$live" ] || bin/ferrovirt down --purge || true
    # Of a failure the last lines are what is read first: they belong to what failed.
    if [ $code = 0 ]; then longest; else rm -f "$E2E_TIMES"; echo "error: failed in \"$failed_in\"" >&2; fi
    [ "$which" != all ] || result "$([ $code = 0 ] && echo passed || echo "failed in \"$failed_in\"")"
    exit $code
}
trap finish EXIT
# Whoever is ended has not passed: without these, the trap above would see the status of the command before.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

step "rules of the repository"
# Of the same packages as below: of itself alone, cargo would build anew what they share. Examples are programs that tests start.
cargo build --quiet --locked --workspace --exclude e2e --bin xtask --examples
"$CARGO_TARGET_DIR/debug/xtask" tidy
step "build of the tests"
cargo test --quiet --locked --workspace --exclude e2e --lib --bins --tests --no-run
step "tests of every crate"
# Many of them wait more than they compute. There are no tests in documentation: building them took longer than all else.
RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --quiet --locked --workspace --exclude e2e --lib --bins --tests
[ "$which" != unit ] || exit 0

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
live=yes
bin/ferrovirt down --purge >/dev/null 2>&1 || true
skip=(--skip interrupted --skip helm_)
if [ "$which" = all ]; then
    export E2E_TRIALS=all
    skip=()
fi

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
cargo test --quiet --locked --workspace --exclude e2e --test machine -- "${skip[@]}"
before=$(traces | sort)
step "images"
# What is made on demand is for trials that take long.
bin/ferrovirt images build $([ "$which" != all ] || echo guestfs)
step "quotas of file systems, in a guest"
scripts/quota.sh
step "devices of containers on version 2 of control groups, in a guest"
scripts/devices.sh
step "a cluster"
bin/ferrovirt up
[ "$which" != all ] || bin/ferrovirt images load
step "build of the live tests"
cargo test --quiet --locked -p e2e --no-run
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
