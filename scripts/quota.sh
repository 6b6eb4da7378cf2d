#!/usr/bin/env bash
# The hostpath provisioner's tests of quotas, in a guest with Debian's kernel: the machine's own may keep no quotas, and then
# the tests show there only that this is noticed.
#   scripts/quota.sh [PROGRAM]     PROGRAM: the compiled tests, made if it is not given
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/guest.sh
program=${1:-$(compiled hpp it)}
cp "$program" "$work/tests"
with $(ldd "$program" | grep -oE '/[^ ]+')
with "$(command -v mkfs.xfs)" "$(command -v mkfs.ext4)" "$(command -v mount)" "$(command -v umount)"
cp /etc/mke2fs.conf "$work/etc/"
modules crc32c_generic loop ext4 xfs quota_v2
cat > "$work/init" <<END
#!/bin/busybox sh
export PATH=/usr/bin:/usr/sbin:/bin:/sbin TMPDIR=/tmp
busybox mount -t proc proc /proc && busybox mount -t sysfs sys /sys && busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs -o size=600m tmp /tmp
while read -r module; do busybox insmod "/modules/\$module"; done < /modules/list
# The tests take a kernel as it is; here it must be one that keeps quotas.
for make in "mkfs.xfs -q" "mkfs.ext4 -q -O quota,project -E quotatype=prjquota"; do
    busybox truncate -s 400M /tmp/disk && \$make /tmp/disk && mount -o loop,prjquota /tmp/disk /mnt || kept=no
    umount /mnt; busybox rm /tmp/disk
done
/tests quota:: --test-threads=1 2>&1 && [ -z "\$kept" ] && echo "QUOTAS ARE KEPT"
busybox poweroff -f
END
said=$(boot)
case $said in
*"QUOTAS ARE KEPT"*) echo "quotas are kept by XFS and ext4 in a guest with Linux $version" ;;
*) echo "$said" >&2; echo "error: the tests of quotas failed in the guest" >&2; exit 1 ;;
esac
