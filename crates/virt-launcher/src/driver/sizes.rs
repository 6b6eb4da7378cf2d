//! How large the guest's disks are. To answer for one of them, libvirt has QEMU tell about all: with many disks that is
//! long, so each is asked about once. Its size changes only when the driver says so.

use std::collections::BTreeMap;

use domain::{DeviceKind, LiveDevice};

/// Bytes of disks, by target and by what is behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes(BTreeMap<String, (String, u64)>);

impl Sizes {
    /// What is known of a disk.
    pub(super) fn of(&self, device: &LiveDevice) -> Option<u64> {
        let (source, size) = self.0.get(&device.target)?;
        (*source == device.source).then_some(*size)
    }

    /// What was heard of a disk; nothing is no size.
    pub(super) fn note(&mut self, device: &LiveDevice, size: u64) {
        if size > 0 {
            self.0.insert(device.target.clone(), (device.source.clone(), size));
        }
    }

    /// Fills in the sizes of all disks with a medium, asking for those that are not known. Of a drive without one, libvirt
    /// would log an error.
    pub(super) fn complete(&mut self, devices: &mut [LiveDevice], ask: impl Fn(&str) -> Option<u64>) {
        for device in devices.iter_mut().filter(|one| one.kind == DeviceKind::Disk && !one.source.is_empty()) {
            device.size = self.of(device).or_else(|| ask(&device.target)).unwrap_or(0);
            self.note(device, device.size);
        }
        self.0.retain(|target, _| devices.iter().any(|device| device.target == *target));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Of `devices`, each `target=source`: those that were asked for, and the sizes in the end.
    #[track_caller]
    fn check(sizes: &mut Sizes, devices: &str, answer: Option<u64>, asked: &str, expect: &[u64]) {
        let device = |word: &str| {
            let (target, source) = word.split_once('=').unwrap();
            LiveDevice { target: target.to_owned(), source: source.to_owned(), ..LiveDevice::default() }
        };
        let mut devices: Vec<_> = devices.split_whitespace().map(device).collect();
        let heard = RefCell::new(Vec::new());
        sizes.complete(&mut devices, |target| {
            heard.borrow_mut().push(target.to_owned());
            answer
        });
        assert_eq!(heard.into_inner().join(" "), asked);
        assert_eq!(devices.iter().map(|device| device.size).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn each_disk_is_asked_about_once() {
        let mut sizes = Sizes::default();
        check(&mut sizes, "sda=/a sdb=/b sr0=", Some(7), "sda sdb", &[7, 7, 0]);
        check(&mut sizes, "sda=/a sdb=/b sdc=/c", Some(8), "sdc", &[7, 7, 8]);
        // Another medium, and one that was away.
        check(&mut sizes, "sda=/x sdc=/c", Some(9), "sda", &[9, 8]);
        check(&mut sizes, "sda=/x sdb=/b", None, "sdb", &[9, 0]);
        check(&mut sizes, "sda=/x sdb=/b", Some(5), "sdb", &[9, 5]);
        let grown = LiveDevice { target: "sda".to_owned(), source: "/x".to_owned(), ..LiveDevice::default() };
        sizes.note(&grown, 10);
        check(&mut sizes, "sda=/x", None, "", &[10]);
    }
}
