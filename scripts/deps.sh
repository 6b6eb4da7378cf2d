#!/usr/bin/env bash
# Install what is missing on a Debian machine, from Debian's own package servers. Asks nothing; says what it does.
set -euo pipefail

fail() { echo "error: $1" >&2; [ -z "${2:-}" ] || echo "hint: $2" >&2; exit 1; }

[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] || fail "this is ${PRETTY_NAME:-an unknown system}, not Debian" "install by hand what scripts/deps.sh lists"

# Needed on the host, with the file that shows that they are there.
#   build        a C linker for Rust
#   cluster      containerd, runc, CNI plugins, nftables
#   images       tools that make the guests' disks
#   tests        QEMU and libvirt for the figures' floor and unit tests, file systems, packers, a registry, a web server, SSH
packages=(
    build-essential:/usr/bin/cc pkg-config:/usr/bin/pkg-config ca-certificates:/etc/ssl/certs/ca-certificates.crt curl:/usr/bin/curl
    containerd:/usr/bin/containerd runc:/usr/sbin/runc containernetworking-plugins:/usr/lib/cni/bridge nftables:/usr/sbin/nft
    iproute2:/usr/sbin/ip kmod:/usr/sbin/depmod
    busybox-static:/bin/busybox cpio:/usr/bin/cpio dosfstools:/usr/sbin/mkfs.vfat e2fsprogs:/usr/sbin/mke2fs xfsprogs:/usr/sbin/mkfs.xfs fdisk:/usr/sbin/sfdisk
    mtools:/usr/bin/mcopy syslinux:/usr/bin/syslinux openssl:/usr/bin/openssl
    xz-utils:/usr/bin/xz zstd:/usr/bin/zstd
    docker-registry:/usr/bin/docker-registry nginx:/usr/sbin/nginx openssh-client:/usr/bin/ssh sshpass:/usr/bin/sshpass
)
# QEMU 10 and libvirt 11: what the images hold, so that figures compare like with like.
backports=(
    qemu-system-x86:/usr/bin/qemu-system-x86_64 qemu-utils:/usr/bin/qemu-img libvirt-daemon:/usr/sbin/libvirtd
    libvirt-clients:/usr/bin/virsh libvirt-daemon-driver-qemu:/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so
    ovmf:/usr/share/OVMF/OVMF_CODE_4M.fd
)

missing=()
for entry in "${packages[@]}"; do [ -e "${entry#*:}" ] || missing+=("${entry%%:*}"); done
command -v kubectl >/dev/null || missing+=(kubernetes-client)
# The suite of clients makes an environment for the Python one.
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
missing_backports=()
for entry in "${backports[@]}"; do [ -e "${entry#*:}" ] || missing_backports+=("${entry%%:*}"); done

suite=$VERSION_CODENAME-backports
sources=/etc/apt/sources.list.d/ferrovirt-backports.sources
has_backports() { grep -qsE "(^|[[:space:]])$suite([[:space:]]|$)" /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; }

privileged() {
    [ "$(id -u)" = 0 ] || fail "installing needs root" "run it as root, or install these yourself: ${missing[*]} ${missing_backports[*]}"
}

if ! has_backports; then
    privileged
    # The same servers as the system's own, another suite.
    base=$(grep -lsE "^Suites:.*\b$VERSION_CODENAME\b" /etc/apt/sources.list.d/*.sources | head -n 1 || true)
    if [ -n "$base" ]; then
        uris=$(awk '/^URIs:/ { print $2; exit }' "$base")
        key=$(awk '/^Signed-By:/ { print $2; exit }' "$base")
    else
        uris=$(awk -v s="$VERSION_CODENAME" '$1 == "deb" { for (i = 2; i < NF; i++) if ($(i + 1) == s) { print $i; exit } }' /etc/apt/sources.list 2>/dev/null)
        key=
    fi
    [ -n "$uris" ] || fail "no source of packages for $VERSION_CODENAME was found in /etc/apt" "add one, and one for $suite"
    echo "enabling the suite $suite"
    { printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$uris" "$suite"; [ -z "$key" ] || echo "Signed-By: $key"; } > "$sources"
    apt-get update -q
elif [ ${#missing[@]} -gt 0 ] || [ ${#missing_backports[@]} -gt 0 ]; then
    privileged
    apt-get update -q
else
    # Image building resolves packages: it needs lists, however old.
    ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1 || { privileged; apt-get update -q; }
fi

# Packages that would start a service at once are told not to: this product starts what it needs, in namespaces of its own.
policy=/usr/sbin/policy-rc.d
install() {
    local made= failed=
    if [ ! -e $policy ]; then printf '#!/bin/sh\nexit 101\n' > $policy; chmod 755 $policy; made=1; fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "$@" |
        { grep -vE '^(Get|Selecting|Preparing|Unpacking|\(Reading)' || true; } || failed=1
    [ -z "$made" ] || rm -f $policy
    [ -z "$failed" ]
}
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing: ${missing[*]}"
    # Where a library came from $suite before, what goes with it has to come from there too.
    install "${missing[@]}" || { echo "again, with $suite"; install -t "$suite" "${missing[@]}"; } ||
        fail "apt-get could not install: ${missing[*]}" "its own words above say why"
fi
if [ ${#missing_backports[@]} -gt 0 ]; then
    echo "installing from $suite: ${missing_backports[*]}"
    install -t "$suite" "${missing_backports[@]}" ||
        fail "apt-get could not install: ${missing_backports[*]}" "its own words above say why"
fi
for entry in "${packages[@]}" "${backports[@]}"; do
    [ -e "${entry#*:}" ] || fail "${entry%%:*} was installed but ${entry#*:} is not there"
done

[ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || fail "there is no Rust toolchain" "install Rust 1.90 or newer with rustup (https://rustup.rs), then run this again"
rust=$(rustc --version | awk '{ print $2 }')
[ "$(printf '1.90\n%s\n' "$rust" | sort -V | head -n 1)" = 1.90 ] || fail "Rust $rust is too old" "1.90 or newer is needed: rustup update stable"
echo "everything needed is installed"
