# Sourced by tests that need another kernel than the machine's: a guest with Debian's, out of what images are built of
# (bin/ferrovirt images build). Its root is what is put into $work; `boot` runs $work/init there and prints what it says.
tree=${FERROVIRT_IMAGES:-/var/cache/ferrovirt/images}/trees/guest
kernel=$(ls "$tree"/boot/vmlinuz-* 2>/dev/null | tail -n 1) || true
[ -n "$kernel" ] || { echo "error: no kernel in $tree/boot" >&2; echo "hint: bin/ferrovirt images build" >&2; exit 1; }
version=${kernel##*/vmlinuz-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,dev,proc,sys,tmp,etc,modules,mnt,run}
cp /bin/busybox "$work/bin/"

# compiled CRATE TARGET: the tests of a crate. Built as scripts/test.sh builds them: another selection of crates would be
# built anew.
compiled() {
    . scripts/cargo.sh
    local found
    found=$(cargo test --quiet --locked --workspace --exclude e2e --no-run --message-format=json |
        grep "/crates/$1/Cargo.toml\"" | grep "\"name\":\"$2\"" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1) || found=
    [ -n "$found" ] || { echo "error: the tests of crate $1 were not built" >&2; return 1; }
    echo "$found"
}

# with PROGRAM...: programs where they are, with their libraries.
with() {
    local program file
    for program in "$@"; do
        for file in "$program" $(ldd "$program" | grep -oE '/[^ ]+'); do
            [ -e "$work$file" ] || install -D "$(readlink -f "$file")" "$work$file"
        done
    done
}

# modules NAME...: with what they need, in the order of $work/modules/list; what the kernel has built in is none.
modules() {
    local name line module
    for name in "$@"; do
        line=$(grep -E "/$name\.ko:" "$tree/lib/modules/$version/modules.dep" | head -n 1) || continue
        for module in $(echo "${line#*:}" | tr ' ' '\n' | tac) "${line%%:*}"; do
            grep -qx "${module##*/}" "$work/modules/list" 2>/dev/null && continue
            cp "$tree/lib/modules/$version/$module" "$work/modules/"
            echo "${module##*/}" >> "$work/modules/list"
        done
    done
}

boot() {
    chmod 755 "$work/init"
    (cd "$work" && find . -path ./initrd -prune -o -print | cpio --quiet -o -H newc | gzip -1 > "$work/initrd")
    timeout 600 qemu-system-x86_64 -M q35 -accel tcg -cpu max -m 1024 -display none -serial stdio -monitor none -no-reboot \
        -kernel "$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet mitigations=off panic=-1 tsc=reliable no_timer_check" < /dev/null
}
