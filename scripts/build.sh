#!/usr/bin/env bash
# Build bin/ferrovirt, bin/virtctl, and what goes into images beside them. PROFILE=release for a release build.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo.sh
profile=${PROFILE:-dev}
dir=$profile
[ "$profile" != dev ] || dir=debug
static=x86_64-unknown-linux-gnu

echo "building (a first build takes several minutes)"
cargo build --quiet --locked --profile "$profile" -p ferrovirt -p virtctl -p virt-launcher
# Runs inside of images that hold nothing but a disk, so it may need no library.
cargo rustc --quiet --locked --release -p container-disk --target $static -- -C target-feature=+crt-static
mkdir -p bin
# Replaced and not overwritten: a running program keeps its file. The same program stays the same file, so that nothing is
# restarted for it.
for built in "$CARGO_TARGET_DIR/$dir/"{ferrovirt,virtctl,virt-launcher} "$CARGO_TARGET_DIR/$static/release/container-disk"; do
    program=bin/${built##*/}
    install -s -m 755 "$built" "$program.new"
    if cmp -s "$program.new" "$program"; then rm "$program.new"; else mv -f "$program.new" "$program"; fi
done
echo "built bin/ferrovirt, bin/virtctl"
