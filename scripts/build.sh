#!/usr/bin/env bash
# Build bin/ferrovirt, bin/virtctl, and what goes into images beside them: the release profile, which is what users run, or
# PROFILE=dev, which the tests build everything else with.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo.sh
profile=${PROFILE:-release}
dir=$profile
[ "$profile" != dev ] || dir=debug
static=x86_64-unknown-linux-gnu

# Cargo's own progress bar on a terminal; elsewhere a line for every fifty crates and for each of ours, and whatever else cargo says.
compile() {
    if [ -t 2 ]; then cargo "$@"; return; fi
    local start=$SECONDS n=0 line name
    # Not awk: Debian's waits until it has read a block.
    CARGO_TERM_COLOR=never cargo "$@" 2>&1 | while IFS= read -r line; do
        case $line in
            *' Compiling '*)
                n=$((n + 1))
                # The crates of this repository come last and take longest: each is named.
                case $line in
                    *" ($PWD"*) read -r _ name _ <<<"$line" && echo "  $name, $n of about $crates crates, after $((SECONDS - start)) s" ;;
                    *) [ $((n % 50)) -ne 0 ] || echo "  $n of about $crates crates after $((SECONDS - start)) s" ;;
                esac
                ;;
            *' Finished '* | *' Downloading '* | *' Downloaded '* | *' Updating '* | *' Locking '*) ;;
            *) echo "$line" ;;
        esac
    done
}

programs=(-p ferrovirt -p virtctl -p virt-launcher)
crates=$(cargo tree --quiet --locked "${programs[@]}" --edges normal,build --prefix none --no-dedupe 2>/dev/null | sort -u | wc -l)
echo "building, profile $profile (a first build takes a quarter of an hour)"
compile build --locked --profile "$profile" "${programs[@]}"
# They run inside of images that hold nothing but a disk, and on nodes of any distribution, so they may need no library.
crates=4 compile rustc --locked --release -p container-disk --target $static -- -C target-feature=+crt-static
crates=$(cargo tree --quiet --locked -p cni --edges normal,build --prefix none --no-dedupe 2>/dev/null | sort -u | wc -l)
compile rustc --locked --release -p cni --bin ferrovirt-cni --target $static -- -C target-feature=+crt-static
mkdir -p bin
# Replaced and not overwritten: a running program keeps its file. The same program stays the same file, so that nothing is
# restarted for it.
for built in "$CARGO_TARGET_DIR/$dir/"{ferrovirt,virtctl,virt-launcher} "$CARGO_TARGET_DIR/$static/release/"{container-disk,ferrovirt-cni}; do
    program=bin/${built##*/}
    install -s -m 755 "$built" "$program.new"
    if cmp -s "$program.new" "$program"; then rm "$program.new"; else mv -f "$program.new" "$program"; fi
done
echo "built bin/ferrovirt, bin/virtctl"
