//! Files of links' character devices in the node's own /dev.

use std::path::Path;

use sys::device::{Kind, make};

/// Makes the file of a macvtap link's character device, which elsewhere the kernel does in a /dev of its own. Of all other paths, and
/// where there is no such link, nothing is made.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn make_link_device(path: &Path) -> sys::Result<()> {
    let Some(name) = link_device(path) else { return Ok(()) };
    let Ok(text) = std::fs::read_to_string(Path::new("/sys/class/macvtap").join(name).join("dev")) else {
        return Ok(());
    };
    let Some((major, minor)) = device_number(&text) else { return Ok(()) };
    make(path, Kind::Char, major, minor, 0o600)
}

/// The name of `/dev/tapN`.
fn link_device(path: &Path) -> Option<&str> {
    let name = path.to_str()?.strip_prefix("/dev/")?;
    let number = name.strip_prefix("tap")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

/// What the kernel writes of a device: `major:minor`.
fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_links_alone_are_made_later() {
        let name = |path: &str| link_device(Path::new(path)).map(str::to_owned);
        assert_eq!(name("/dev/tap12"), Some("tap12".to_owned()));
        for other in ["/dev/tap", "/dev/tap1/x", "/dev/../tap1", "/dev/kvm", "/tap1", "/dev/tap-1"] {
            assert_eq!(name(other), None, "{other}");
        }
        assert_eq!(device_number("511:3\n"), Some((511, 3)));
        assert_eq!(device_number("511"), None);
    }
}
