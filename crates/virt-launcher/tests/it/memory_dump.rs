//! A guest's memory as a file, through a node agent that is this test.

use std::io::Read as _;
use std::process::Command;

use domain::MemoryDump;
use rpc::launcher::{DomainState, MemoryDumpRequest, SyncRequest};
use serde_json::json;
use tonic::Streaming;

use crate::backup::{give, lend};
use crate::boot::{GREETING, Launcher, greeting_disk};
use crate::support::{connect, until, watch};

fn vmi() -> String {
    json!({
        "metadata": {"name": "boot", "namespace": "test", "uid": "u1"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "terminationGracePeriodSeconds": 0,
            "utilityVolumes": [{"name": "out", "claimName": "out", "type": "MemoryDump"}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        },
    })
    .to_string()
}

fn told(state: &DomainState) -> MemoryDump {
    serde_json::from_str(&state.memory_dump).unwrap_or_default()
}

/// What is told of a dump that is over, once the guest goes on.
async fn ended(states: &mut Streaming<DomainState>, file: &str) -> MemoryDump {
    let over = |state: &DomainState| {
        let dump = told(state);
        dump.file == file && dump.ended.is_some() && state.status == "Running"
    };
    told(&until(states, "the end of the dump", over).await)
}

fn dump(volume: &str, file: &str) -> MemoryDumpRequest {
    MemoryDumpRequest { volume: volume.to_owned(), file: file.to_owned() }
}

#[tokio::test]
async fn a_memory_dump_holds_the_guests_memory() {
    let launcher = Launcher::start();
    let mut client = connect(&launcher.path("kubevirt/sockets/launcher-sock")).await;
    let claim = launcher.path("kubevirt-private/vmi-disks/root");
    std::fs::create_dir_all(&claim).unwrap();
    std::fs::write(claim.join("disk.img"), greeting_disk()).unwrap();
    give(&claim);
    let mut states = watch(&mut client).await;
    let environment = json!({"emulation": true, "logSerialConsole": true}).to_string();
    client.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap();
    until(&mut states, "status Running", |state| state.status == "Running").await;
    let log = launcher.path("kubevirt-private/u1/virt-serial0-log");
    let greeted = async {
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains(GREETING)) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, greeted).await.expect("the guest runs");

    let refused = client.dump_memory(dump("out", "one.memory.dump")).await.unwrap_err();
    assert!(refused.message().contains("is not in the pod"), "{refused}");
    let out = lend(&launcher, "out");
    let refused = client.dump_memory(dump("out", "../one.memory.dump")).await.unwrap_err();
    assert!(refused.message().contains("has a name that ends in"), "{refused}");
    client.dump_memory(dump("out", "one.memory.dump")).await.unwrap();
    client.dump_memory(dump("out", "one.memory.dump")).await.unwrap();
    let one = ended(&mut states, "one.memory.dump").await;
    assert_eq!((one.volume.as_str(), one.failure.as_deref()), ("out", None));
    let core = out.join("one.memory.dump");
    let mut header = [0; 17];
    std::fs::File::open(&core).unwrap().read_exact(&mut header).unwrap();
    // An ELF file of the type ET_CORE.
    assert_eq!((&header[..4], header[16]), (b"\x7fELF".as_slice(), 4));
    assert!(core.metadata().unwrap().len() > 64 << 20);
    let found = Command::new("grep").args(["-qaF", GREETING]).arg(&core).status().unwrap();
    assert!(found.success(), "the boot sector is in memory");

    // The next dump takes the place of this one.
    client.dump_memory(dump("out", "two.memory.dump")).await.unwrap();
    assert_eq!(ended(&mut states, "two.memory.dump").await.failure, None);
    let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["two.memory.dump"]);

    // One that cannot be written is told as failed, and leaves nothing.
    std::fs::remove_dir_all(&out).unwrap();
    client.dump_memory(dump("out", "three.memory.dump")).await.unwrap();
    let failed = ended(&mut states, "three.memory.dump").await.failure.unwrap();
    assert!(failed.starts_with("Domain memory dump failed: "), "{failed}");
}
