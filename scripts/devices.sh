#!/usr/bin/env bash
# The tests of who may open a device, in a guest with Debian's kernel whose control groups are of version 2 alone, as those of
# current distributions are; once more with a kernel that hides the constants of programs.
#   scripts/devices.sh [PROGRAM]     PROGRAM: the compiled tests of crate sys, made if it is not given
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/guest.sh
program=${1:-$(compiled sys sys)}
cp "$program" "$work/tests"
with $(ldd "$program" | grep -oE '/[^ ]+') "$(command -v runc)"
cat > "$work/init" <<END
#!/bin/busybox sh
export PATH=/usr/bin:/usr/sbin:/bin:/sbin TMPDIR=/tmp
busybox mount -t proc proc /proc && busybox mount -t sysfs sys /sys && busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmp /tmp && busybox mount -t tmpfs run /run && busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
for name in sh head sleep; do busybox ln -s busybox /bin/\$name; done
# The tests take a machine as it is; here it must be one that has it all.
runc --version > /dev/null && [ -e /sys/fs/cgroup/cgroup.controllers ] || whole=no
busybox grep -v cgroup2 /proc/mounts | busybox grep -q ' cgroup ' && whole=no
for harden in 0 2; do
    echo \$harden > /proc/sys/net/core/bpf_jit_harden || whole=no
    echo "constants hidden: \$harden"
    /tests device_access:: --test-threads=1 2>&1 || whole=no
done
[ -z "\$whole" ] && echo "DEVICES ARE LENT"
busybox poweroff -f
END
said=$(boot)
case $said in
*"DEVICES ARE LENT"*) echo "devices are lent on control groups of version 2 in a guest with Linux $version" ;;
*) echo "$said" >&2; echo "error: the tests of devices failed in the guest" >&2; exit 1 ;;
esac
