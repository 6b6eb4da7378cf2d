#!/usr/bin/env bash
# Print one table of figures, each beside its floor or its reference where there is one. Needs no cluster running; leaves none.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "error: the benchmarks need root" >&2; exit 1; }
rounds=${ROUNDS:-20}
work=$(mktemp -d)
chmod 755 "$work"
export FERROVIRT_STATE=/var/lib/ferrovirt-bench
daemon=
finish() { [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; bin/ferrovirt down --purge >/dev/null 2>&1 || true; rm -rf "$work"; }
trap finish EXIT
bin/ferrovirt down >/dev/null 2>&1 || true
bin/ferrovirt down --purge >/dev/null 2>&1 || true

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.2f", v[int((NR + 1) / 2)] }'; }
# pss PATTERN: proportional set size in MiB of the processes whose command line matches.
pss() { for pid in $(pgrep -f "$1"); do awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null || true; done | awk '{ s += $1 } END { printf "%.1f", s / 1024 }'; }
rss() { for pid in $(pgrep -f "$1"); do awk '/^VmRSS:/ { print $2 }' "/proc/$pid/status" 2>/dev/null || true; done | awk '{ s += $1 } END { printf "%.1f", s / 1024 }'; }
row() { printf '%-58s %12s   %s\n' "$1" "$2" "$3"; }

# The floor: the same kind of guest started by virsh on a session daemon of its own.
setpriv="setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$work XDG_RUNTIME_DIR=$work PATH=$PATH"
chown 65534:65534 "$work"
mkdir -p "$work/.config/libvirt"
printf 'cgroup_controllers = []\nnamespaces = []\nsecurity_driver = "none"\nstdio_handler = "file"\n' > "$work/.config/libvirt/qemu.conf"
cp "${FERROVIRT_IMAGES:-/var/cache/ferrovirt/images}/guest/disk.qcow2" "$work/disk.qcow2"
chown -R 65534:65534 "$work"
printf 'listen_tls = 0\nauth_unix_rw = "none"\n' > "$work/libvirtd.conf"
$setpriv libvirtd -f "$work/libvirtd.conf" > "$work/libvirtd.log" 2>&1 &
daemon=$!
cat > "$work/domain.xml" <<XML
<domain type='qemu'><name>floor</name><memory unit='MiB'>256</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='$work/disk.qcow2'/><target dev='vda' bus='virtio'/></disk>
<serial type='pty'/><graphics type='vnc' port='-1'><listen type='none'/></graphics></devices></domain>
XML
until $setpriv virsh -q -c qemu:///session list >/dev/null 2>&1; do kill -0 "$daemon"; done
$setpriv virsh -q -c qemu:///session define "$work/domain.xml" >/dev/null
floor=$(for _ in $(seq "$rounds"); do
    begin=$(now); $setpriv virsh -q -c qemu:///session start floor >/dev/null; since "$begin"; echo
    $setpriv virsh -q -c qemu:///session destroy floor >/dev/null
done | median)
kill "$daemon"; wait "$daemon" 2>/dev/null || true; daemon=

begin=$(now); bin/ferrovirt up --cluster-only >/dev/null; ready=$(since "$begin")
begin=$(now); bin/ferrovirt up >/dev/null; deployed=$(since "$begin")
export KUBECONFIG=$FERROVIRT_STATE/kubeconfig
control=$(rss "^/proc/self/exe control-plane|ferrovirt control-plane")
parts=$(for name in virt-operator virt-api virt-controller virt-handler; do pss "(^|/)$name( |\$)"; echo; done | awk '{ s += $1 } END { printf "%.1f", s }')

vmi() { sed -n '/^    spec:/,/^---/p' deploy/demo/vm.yaml | sed '/^---/d; s/^    //' | sed "1i apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: $1, namespace: default}"; }
start() { vmi "$1" | kubectl apply -f - >/dev/null; kubectl wait "vmi/$1" --for=jsonpath='{.status.phase}'=Running --timeout=120s >/dev/null; }
started=$(for n in $(seq "$rounds"); do
    begin=$(now); start "bench-$n"; since "$begin"; echo
    [ "$n" = 1 ] || kubectl delete vmi "bench-$n" --grace-period=0 --timeout=120s >/dev/null 2>&1
done | median)
launcher=$(pss "^/usr/bin/virt-launcher")
beyond=$(awk -v a="$launcher" -v b="$(pss '^/usr/sbin/libvirtd')" -v c="$(pss '^/usr/bin/busybox sleep infinity')" -v d="$(pss '^/usr/bin/container-disk ')" 'BEGIN { printf "%.1f", a + b + c + d }')

printf '\n%-58s %12s   %s\n' figure here "floor, or reference"
row "cluster up, to node Ready (s)" "$ready" "aim 3; Kubernetes on such a machine 9-22"
row "images loaded and KubeVirt Available (s)" "$deployed" "aim 10 without loading; KubeVirt 84"
row "VMI create -> Running, p50 of $rounds (s)" "$started" "virsh start $floor; aim 2x + 0.5; KubeVirt 4.7"
row "control plane, RSS (MiB)" "$control" "aim 120 with the node agent"
row "virtualization components at rest, PSS (MiB)" "$parts" "aim 100; KubeVirt 925 RSS"
row "virt-launcher process, PSS, one VM (MiB)" "$launcher" "aim 10"
row "launcher pod beyond QEMU, PSS, one VM (MiB)" "$beyond" "aim 45; KubeVirt 109"
