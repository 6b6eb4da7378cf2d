#!/bin/sh
# build.sh SYSROOT OUT: make OUT/{kernel,initrd,root,README.fixed}, the machine that libguestfs works in, from unpacked Debian packages.
# SYSROOT holds the packages listed in crates/images/src/guestfs.rs. It takes the place of supermin, which puts the same together
# from what is installed on the machine it runs on.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sysroot=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(basename "$(echo "$sysroot"/lib/modules/*)")
[ -f "$sysroot/boot/vmlinuz-$version" ] || { echo "no kernel in $sysroot/boot" >&2; exit 1; }
parts=$(dirname "$(find "$sysroot/usr/lib" -path '*/guestfs/supermin.d/daemon.tar.gz' | head -n 1)")
[ -f "$parts/init.tar.gz" ] || { echo "no parts of the appliance in $sysroot/usr/lib" >&2; exit 1; }

# --- the root file system: the packages without what only people read, what starts the appliance, and what is made in it ---
root=$work/root
mkdir -p "$root"
(cd "$sysroot" && tar -c \
    --exclude=./boot --exclude=./lib/modules --exclude='./usr/share/doc*' --exclude=./usr/share/man --exclude=./usr/share/info \
    --exclude=./usr/share/locale --exclude=./usr/share/lintian --exclude=./usr/share/bug --exclude=./usr/share/icons \
    --exclude=./usr/share/iso-codes --exclude=./usr/share/xml --exclude=./usr/share/osinfo --exclude=./usr/share/qemu \
    --exclude=./usr/share/seabios --exclude=./usr/share/bash-completion --exclude=./usr/share/zsh --exclude=./usr/share/perl5 \
    --exclude=./usr/share/i18n --exclude='./usr/lib/*/perl*' --exclude='./usr/lib/*/guestfs' --exclude='./usr/lib/*/qemu' \
    --exclude='./usr/lib/*/gstreamer*' --exclude='./usr/bin/qemu-system-*' --exclude=./usr/lib/ipxe --exclude=./usr/lib/grub \
    --exclude=./usr/lib/syslinux --exclude=./usr/lib/EXTLINUX --exclude=./usr/lib/SYSLINUX --exclude=./usr/lib/udev/hwdb.d \
    --exclude=./lib/udev/hwdb.d --exclude='./usr/bin/virt-*' --exclude=./usr/bin/guestfish --exclude='./usr/lib/python3*' --exclude='./usr/libexec/qemu*' --exclude=./usr/src \
    --exclude='./usr/bin/python3*' --exclude=./usr/include .) | tar -x -C "$root"
for part in daemon init udev-rules; do tar -xzf "$parts/$part.tar.gz" -C "$root"; done
# What the packages' scripts would have made.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
[ -e "$root/usr/bin/awk" ] || ln -s gawk "$root/usr/bin/awk"
[ -e "$root/bin/sh" ] || ln -s dash "$root/bin/sh"
# How the appliance ends: that of the packages asks systemd, which is not there.
ln -sf /bin/busybox "$root/sbin/reboot"
ln -sf /proc/mounts "$root/etc/mtab"
: > "$root/etc/fstab"
# Written to when the appliance starts, its own disk being a copy.
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/var/tmp" "$root/sysroot" "$root/root" "$root/var/lib/dhcp"
chmod 1777 "$root/tmp" "$root/var/tmp"

# --- modules: file systems, what is below them, and what QEMU shows ---
kernel=lib/modules/$version
mkdir -p "$root/$kernel/kernel"
for part in fs crypto lib arch/x86/crypto block drivers/ata drivers/block drivers/cdrom drivers/char drivers/md drivers/nvme drivers/scsi \
    drivers/virtio drivers/net/virtio_net.ko drivers/net/net_failover.ko drivers/dax drivers/nvdimm net/core/failover.ko; do
    [ ! -e "$sysroot/$kernel/kernel/$part" ] || (cd "$sysroot" && cp -r --parents "$kernel/kernel/$part" "$root")
done
cp "$sysroot/$kernel/modules.builtin" "$sysroot/$kernel/modules.builtin.modinfo" "$sysroot/$kernel/modules.order" "$root/$kernel/"
depmod -b "$root" "$version"

# --- initrd: what reaches the root, and what else of QEMU's is there: the appliance's udev loads nothing for what is older than itself ---
early=$work/early
mkdir -p "$early/bin" "$early/modules" "$early/proc" "$early/sys" "$early/dev" "$early/root"
cp "$sysroot/bin/busybox" "$early/bin/"
cp "$here/init" "$early/init" && chmod 755 "$early/init"
for name in virtio_pci virtio_blk virtio_scsi virtio_console virtio-rng virtio_net sd_mod crc32c_generic ext4; do
    line=$(grep -E "/$name\.ko(\.xz)?:" "$root/$kernel/modules.dep" | head -n 1)
    # What is none is part of the kernel.
    [ -n "$line" ] || continue
    for file in $(echo "${line#*:}" | tr ' ' '\n' | sed '1!G;h;$!d') "${line%%:*}"; do echo "$file"; done
done | awk '!seen[$0]++' | while read -r file; do
    cp "$root/$kernel/$file" "$early/modules/"
    basename "$file" >> "$early/modules/order"
done

# --- all of it ---
rm -rf "$out" && mkdir -p "$out"
cp "$sysroot/boot/vmlinuz-$version" "$out/kernel"
(cd "$early" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet --reproducible | gzip -n -9) > "$out/initrd"
find "$root" -exec touch -h -d @0 {} +
[ "$(id -u)" != 0 ] || chown -R 0:0 "$root"
# Some of it is free, for what the appliance writes.
blocks=$(($(du -s -B 4096 "$root" | cut -f 1) * 9 / 8 + 8192))
mke2fs -q -t ext4 -b 4096 -O ^has_journal -m 0 -N $(($(find "$root" | wc -l) + 4096)) \
    -E hash_seed=46565254-0000-4000-8000-000000000000,root_owner=0:0 -U 46565254-0000-4000-8000-000000000002 -d "$root" "$out/root" "$blocks"
echo "The appliance of libguestfs, made of Debian packages: kernel, initrd and root belong together." > "$out/README.fixed"
