//! What a guest, its agent or QEMU says is written into the status fit for the terminals it will be read on.

use api::kubevirt::v1::VirtualMachineInstanceStatus;
use meta::text::{STATUS, brief};

/// Writes out what a terminal would obey, wherever the text is not our own.
pub(super) fn write_out(status: &mut VirtualMachineInstanceStatus) {
    let mut texts: Vec<&mut String> = Vec::new();
    texts.extend(status.reason.as_mut());
    for condition in &mut status.conditions {
        texts.extend([&mut condition.message, &mut condition.reason].into_iter().flatten());
    }
    for volume in &mut status.volume_status {
        texts.extend([&mut volume.message, &mut volume.reason].into_iter().flatten());
    }
    for interface in &mut status.interfaces {
        texts.extend(
            [&mut interface.interface_name, &mut interface.ip_address, &mut interface.mac].into_iter().flatten(),
        );
        texts.extend(&mut interface.ip_addresses);
    }
    if let Some(os) = status.guest_os_info.as_deref_mut() {
        let all = [
            &mut os.id,
            &mut os.kernel_release,
            &mut os.kernel_version,
            &mut os.machine,
            &mut os.name,
            &mut os.pretty_name,
            &mut os.version,
            &mut os.version_id,
        ];
        texts.extend(all.into_iter().flatten());
    }
    for text in texts {
        let shown = brief(text, STATUS);
        if shown != *text {
            *text = shown.into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_a_guests_words_moves_a_cursor() {
        let evil = "a\u{1b}[2J\u{9b}31m\u{202e}";
        let mut status: VirtualMachineInstanceStatus = serde_json::from_value(json!({
            "reason": evil,
            "conditions": [{ "type": "Synchronized", "status": "False", "message": evil, "reason": evil }],
            "guestOSInfo": { "prettyName": evil, "version": evil, "id": evil },
            "interfaces": [{ "interfaceName": evil, "ipAddress": evil, "ipAddresses": [evil] }],
            "volumeStatus": [{ "name": "a", "target": "", "message": evil }],
        }))
        .unwrap();
        write_out(&mut status);
        let text = serde_json::to_string(&status).unwrap();
        // Six characters each, not one that is escaped by JSON alone.
        assert!(!text.contains(evil) && text.is_ascii() && text.contains("a\\\\u001b[2J"), "{text}");
        let once = status.clone();
        write_out(&mut status);
        assert_eq!(status, once);
        status.reason = Some("x".repeat(1 << 20));
        write_out(&mut status);
        assert_eq!(status.reason.map(|reason| reason.len()), Some(STATUS));
    }
}
