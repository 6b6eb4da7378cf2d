//! Whatever a launcher that was taken over tells of its guest: it is a status, of bounded size, and the same one again.

use domain::LiveDevice;
use proptest::prelude::*;
use rpc::launcher::DomainState;
use serde_json::{Value, json};

use super::*;

/// A guest whose claims, backup and dump the launcher may speak of.
fn vmi(phase: &str) -> VirtualMachineInstance {
    let backup = json!({ "backupName": "b", "startTimestamp": "2026-01-31T13:59:59Z" });
    let dump =
        json!({ "name": "dump", "target": "", "phase": "InProgress", "memoryDumpVolume": { "targetFileName": "f" } });
    serde_json::from_value(json!({
        "metadata": { "name": "a", "namespace": "n" },
        "spec": {
            "domain": { "devices": {
                "interfaces": [{ "name": "default", "masquerade": {} }, { "name": "blue", "bridge": {} }],
                "disks": [{ "name": "root" }],
            } },
            "networks": [{ "name": "default", "pod": {} }, { "name": "blue", "multus": { "networkName": "n" } }],
            "volumes": [{ "name": "root", "emptyDisk": { "capacity": "1Gi" } }],
            "utilityVolumes": [{ "name": "dump", "claimName": "claim", "type": "MemoryDump" }],
        },
        "status": {
            "phase": phase, "memory": { "guestCurrent": "128Mi" }, "volumeStatus": [dump],
            "changedBlockTracking": { "state": "Enabled", "backupStatus": backup },
        },
    }))
    .unwrap()
}

/// JSON of the names and words that are looked for, with more depth than any of it has.
fn document() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "hostname",
        "os",
        "interfaces",
        "devices",
        "failedDisks",
        "memoryKib",
        "name",
        "mac",
        "addresses",
        "kind",
        "target",
        "size",
        "queues",
        "link",
        "full",
        "prettyName",
        "backupName",
        "startTimestamp",
        "endTimestamp",
        "completed",
        "volume",
        "file",
        "started",
        "ended",
        "failure",
        "fsFreezeStatus",
        "machine",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            "root",
            "default",
            "blue",
            "dump",
            "b",
            "f",
            "disk",
            "interface",
            "2026-01-31T13:59:59Z",
            "\u{1b}[2J"
        ])
        .prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            1 => proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            3 => proptest::collection::vec((name.clone(), inner), 0..8).prop_map(|members| Value::Object(
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            )),
        ]
    })
}

/// Facts that are read, of the devices that the guest has and of others.
fn facts() -> impl Strategy<Value = Value> {
    let name = || prop::sample::select(vec!["root", "default", "blue", "other", ""]);
    let mac = || prop::sample::select(vec!["02:00:00:00:00:01", "02:00:00:00:00:02", ""]);
    let kind = any::<bool>().prop_map(|disk| if disk { DeviceKind::Disk } else { DeviceKind::Interface });
    let device = (name(), kind, mac(), ".{0,20}", any::<u32>(), any::<u64>());
    let device = device.prop_map(|(name, kind, mac, target, queues, size)| {
        json!(LiveDevice { name: name.into(), kind, mac: mac.into(), target, queues, size, ..LiveDevice::default() })
    });
    let interface = (".{0,20}", mac(), proptest::collection::vec(".{0,20}", 0..3));
    let interface =
        interface.prop_map(|(name, mac, addresses)| json!({ "name": name, "mac": mac, "addresses": addresses }));
    let failed = (name(), any::<bool>()).prop_map(|(name, full)| json!({ "name": name, "full": full }));
    let lists = (
        proptest::collection::vec(device, 0..5),
        proptest::collection::vec(interface, 0..4),
        proptest::collection::vec(failed, 0..3),
    );
    (lists, any::<u64>(), ".{0,20}").prop_map(|((devices, interfaces, failed), memory, word)| {
        json!({ "devices": devices, "interfaces": interfaces, "failedDisks": failed, "memoryKib": memory,
            "machine": word, "fsFreezeStatus": "frozen", "os": { "prettyName": word, "id": word } })
    })
}

fn state() -> impl Strategy<Value = DomainState> {
    let status = prop::sample::select(vec![
        "",
        "NoState",
        "Running",
        "Paused",
        "Blocked",
        "Shutoff",
        "Crashed",
        "PMSuspended",
        "?",
    ]);
    let reason =
        prop::sample::select(vec!["", "User", "PausedIOError", "PausedDump", "Migrated", "Failed", "Destroyed", "?"]);
    let text = || prop_oneof![document().prop_map(|document| document.to_string()), ".{0,60}"];
    let told = (prop_oneof![facts().prop_map(|facts| facts.to_string()), text()], text(), text());
    (status, reason, any::<[bool; 2]>(), ".{0,40}", told).prop_map(|(status, reason, flags, sync_error, told)| {
        let (guest, backup, memory_dump) = told;
        DomainState {
            status: status.into(),
            reason: reason.into(),
            agent_connected: flags[0],
            terminal: flags[1],
            sync_error,
            guest,
            backup,
            memory_dump,
            ..DomainState::default()
        }
    })
}

proptest! {
    #[test]
    fn any_launcher_state_gives_a_status(
        state in state(), gone in any::<bool>(), phase in prop::sample::select(vec!["Scheduled", "Running"]),
    ) {
        let told = state.guest.len() + state.backup.len() + state.memory_dump.len() + state.sync_error.len();
        let seen = Observed { domain: Some(state.into()), launcher_gone: gone, ..Observed::default() };
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut vmi = vmi(phase);
        let first = status(&vmi, &seen, now);
        let text = serde_json::to_string(&first).unwrap();
        // Each interface may repeat what was told.
        prop_assert!(text.len() < 4096 + 16 * told, "{} of {told}: {text}", text.len());
        vmi.status = Some(Box::new(first.clone()));
        prop_assert_eq!(status(&vmi, &seen, now), first, "it never settles");
    }
}
