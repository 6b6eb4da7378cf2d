# Sourced by what calls cargo: which cargo, where it builds, and for which checkout.
[ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-/var/cache/ferrovirt/target}

# Several checkouts may share that directory, and cargo tells their sources apart by time alone: to the older checkout, what
# the newer one built looks up to date. Whoever takes over gives what it has in common with the last one that one's times, and
# so need not build it again; whatever differs is the newest, and so is what is built to know where its checkout is.
claim() {
    local owner=$CARGO_TARGET_DIR/checkout last
    last=$(cat "$owner" 2>/dev/null || true)
    [ "$last" != "$PWD" ] || return 0
    mkdir -p "$CARGO_TARGET_DIR"
    find . \( -name .git -o -path ./bin \) -prune -o -type f -exec touch {} +
    if [ -d "$last" ]; then
        { LC_ALL=C diff -rqs --exclude=.git --exclude=bin "$last" . || true; } | sed -n 's/^Files .* and \(.*\) are identical$/\1/p' |
            while read -r file; do touch -r "$last/$file" "$file"; done
        { grep -rl --include='*.rs' CARGO_MANIFEST_DIR . || true; } | xargs -r touch
    fi
    echo "$PWD" > "$owner"
}
claim
