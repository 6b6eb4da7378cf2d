#!/bin/sh
# build.sh SYSROOT OUT: make OUT/disk.qcow2 and OUT/{vmlinuz,initrd} from unpacked Debian packages and the files beside this script.
# SYSROOT holds the packages listed in crates/images/src/guest.rs; LIBS names the shared libraries its programs need, one path a line.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sysroot=$1 out=$2 libs=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(basename "$(echo "$sysroot"/lib/modules/*)")
modules=$sysroot/lib/modules/$version/kernel
[ -f "$sysroot/boot/vmlinuz-$version" ] || { echo "no kernel in $sysroot/boot" >&2; exit 1; }

# module NAME...: the files of modules and all they depend on, dependencies first.
depmod -b "$sysroot" "$version"
module() {
    for name in "$@"; do
        line=$(grep -E "/$name\.ko(\.xz)?:" "$sysroot/lib/modules/$version/modules.dep" | head -n 1) || continue
        [ -n "$line" ] || continue
        for dep in $(echo "${line#*:}" | tr ' ' '\n' | sed '1!G;h;$!d'); do echo "$dep"; done
        echo "${line%%:*}"
    done | awk '!seen[$0]++'
}

# --- the root file system ---
root=$work/root
mkdir -p "$root/bin" "$root/sbin" "$root/usr/bin" "$root/usr/sbin" "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp" \
    "$root/root" "$root/home/guest" "$root/var/lib/dhcpcd" "$root/var/log" "$root/etc" "$root/lib64" "$root/mnt"
ln -s ../run "$root/var/run"
cp "$sysroot/bin/busybox" "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do
    case $applet in init | getty | halt | poweroff | reboot | modprobe | insmod | ip | acpid) dir=sbin ;; *) dir=bin ;; esac
    [ -e "$root/$dir/$applet" ] || ln -s /bin/busybox "$root/$dir/$applet"
done
while read -r lib; do
    [ -n "$lib" ] || continue
    mkdir -p "$root/$(dirname "$lib")"
    cp -L "$sysroot/$lib" "$root/$lib"
done < "$libs"
cp "$sysroot/usr/sbin/dropbear" "$sysroot/usr/sbin/qemu-ga" "$root/usr/sbin/"
cp "$(find "$sysroot/sbin" "$sysroot/usr/sbin" -name dhcpcd -type f | head -n 1)" "$root/usr/sbin/dhcpcd"
mkdir -p "$root/usr/lib/openssh" && cp "$sysroot/usr/lib/openssh/sftp-server" "$root/usr/lib/openssh/" && ln -s openssh/sftp-server "$root/usr/lib/sftp-server"
for hooks in lib/dhcpcd usr/lib/dhcpcd; do
    [ ! -d "$sysroot/$hooks" ] || { mkdir -p "$root/$hooks" && cp -r "$sysroot/$hooks/." "$root/$hooks/"; }
done
(cd "$sysroot/lib/modules/$version" && module \
    virtio_pci virtio_mmio virtio_blk virtio_scsi virtio_net virtio_console virtio_balloon virtio_rng virtio_input virtiofs 9p 9pnet_virtio \
    ahci ata_piix sd_mod sr_mod isofs nls_utf8 nls_iso8859-1 nls_cp437 vfat ext4 e1000 e1000e 8139cp i6300esb iTCO_wdt button evdev psmouse \
    af_packet usbhid xhci_pci ehci_pci uhci_hcd uas usb_storage bochs cirrus virtio-gpu pvpanic pvpanic-pci tpm_tis tpm_crb efivarfs vmw_vsock_virtio_transport \
    virtio_mem pci_hotplug acpiphp crc32c_generic crc32c-intel) > "$work/modules"
mkdir -p "$root/lib/modules/$version"
(cd "$sysroot/lib/modules/$version" && cp modules.builtin modules.order "$root/lib/modules/$version/" && cp --parents $(cat "$work/modules") "$root/lib/modules/$version/")
depmod -b "$root" "$version"
cp -r "$here/rootfs/." "$root/"
chmod 755 "$root/etc/init.d/rcS" "$root/etc/init.d/rcK" "$root/etc/acpi/PWRF/00000080" "$root/usr/lib/guest/cloud-init" "$root/usr/sbin/chpasswd" "$root/srv/www/cgi-bin/hello"
hash=$(printf guest | busybox cryptpw -m sha512 -S guestguest -P 0 2>/dev/null || openssl passwd -6 -salt guestguest guest)
printf 'root:%s:19000:0:99999:7:::\ndhcpcd:!:19000::::::\nguest:%s:19000:0:99999:7:::\n' "$hash" "$hash" > "$root/etc/shadow"
chmod 600 "$root/etc/shadow"
ln -sf /bin/busybox "$root/sbin/init"
ln -sf sbin/init "$root/init"

# --- kernelBoot: kernel and the whole root as an initrd ---
mkdir -p "$out"
cp "$sysroot/boot/vmlinuz-$version" "$out/vmlinuz"
(cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet --reproducible | gzip -n -1) > "$out/initrd"

# --- the small initramfs of the disk ---
early=$work/early
mkdir -p "$early/bin" "$early/modules" "$early/proc" "$early/sys" "$early/dev" "$early/root"
cp "$root/bin/busybox" "$early/bin/"
cp "$here/initramfs/init" "$early/init" && chmod 755 "$early/init"
(cd "$sysroot/lib/modules/$version" && module virtio_pci virtio_blk virtio_scsi ahci ata_piix sd_mod usb_storage uas xhci_pci crc32c_generic ext4) | while read -r file; do
    cp "$sysroot/lib/modules/$version/$file" "$early/modules/"
    basename "$file" >> "$early/modules/order"
done
(cd "$early" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet --reproducible | gzip -n -9) > "$work/initramfs"

# --- the disk: MBR, FAT with both boot loaders, ext4 ---
mib=1048576 boot_start=1 boot_size=30 root_start=31 root_size=96
cmdline="root=LABEL=guest-root rw console=tty1 console=ttyS0,115200n8 quiet mitigations=off nokaslr cryptomgr.notests tsc=reliable no_timer_check net.ifnames=0"
disk=$work/disk.raw
truncate -s $(((root_start + root_size + 1) * mib)) "$disk"
printf 'label: dos\nlabel-id: 0x46565254\nstart=%d, size=%d, type=ef, bootable\nstart=%d, size=%d, type=83\n' \
    $((boot_start * 2048)) $((boot_size * 2048)) $((root_start * 2048)) $((root_size * 2048)) | sfdisk --quiet "$disk"
boot=$work/boot.fat
truncate -s $((boot_size * mib)) "$boot"
mkfs.vfat -F 16 -n GUESTBOOT -i 46565254 --invariant "$boot" > /dev/null
printf 'DEFAULT guest\nPROMPT 0\nTIMEOUT 0\nLABEL guest\n  LINUX /vmlinuz\n  INITRD /initrd\n  APPEND %s\n' "$cmdline" > "$work/syslinux.cfg"
printf 'timeout 0\ndefault guest\n' > "$work/loader.conf"
printf 'title Ferrovirt guest\nlinux /vmlinuz\ninitrd /initrd\noptions %s\n' "$cmdline" > "$work/guest.conf"
export MTOOLS_SKIP_CHECK=1
mmd -i "$boot" ::/EFI ::/EFI/BOOT ::/loader ::/loader/entries
mcopy -i "$boot" "$out/vmlinuz" ::/vmlinuz
mcopy -i "$boot" "$work/initramfs" ::/initrd
mcopy -i "$boot" "$work/syslinux.cfg" ::/syslinux.cfg
mcopy -i "$boot" "$(find "$sysroot/usr/lib/systemd/boot/efi" -name systemd-bootx64.efi)" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$boot" "$work/loader.conf" ::/loader/loader.conf
mcopy -i "$boot" "$work/guest.conf" ::/loader/entries/guest.conf
syslinux --install "$boot"
dd if="$boot" of="$disk" bs=1M seek=$boot_start conv=notrunc status=none
dd if="$(find "$sysroot/usr/lib/syslinux" /usr/lib/syslinux -name mbr.bin 2>/dev/null | grep -v gpt | head -n 1)" of="$disk" bs=440 count=1 conv=notrunc status=none
chown -R 0:0 "$root" && chown -R 1000:1000 "$root/home/guest"
truncate -s $((root_size * mib)) "$work/root.ext4"
mke2fs -q -t ext4 -L guest-root -O ^has_journal -m 0 -E hash_seed=46565254-0000-4000-8000-000000000000,root_owner=0:0 -U 46565254-0000-4000-8000-000000000001 -d "$root" "$work/root.ext4"
dd if="$work/root.ext4" of="$disk" bs=1M seek=$root_start conv=notrunc,sparse status=none
qemu-img convert -O qcow2 -c "$disk" "$out/disk.qcow2"
