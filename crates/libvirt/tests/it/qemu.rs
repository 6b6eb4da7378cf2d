//! What only the QEMU driver has, on a machine without firmware, disk or guest.

use libvirt::{AddressSource, Capability, Event, State};

use crate::daemon::Daemon;

/// Runs nothing but its firmware, which finds nothing to boot.
const XML: &str = "<domain type='qemu'><name>probe</name><memory>16384</memory>
    <os><type arch='x86_64' machine='q35'>hvm</type></os>
    <devices>
      <controller type='scsi' model='virtio-scsi'/>
      <video><model type='vga' vram='16384'/></video>
      <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
      <graphics type='vnc' socket='SOCKET'/>
    </devices></domain>";

#[tokio::test]
async fn the_monitor_and_the_agent_are_asked() {
    let daemon = Daemon::start();
    let connection = daemon.open("qemu:///session");
    let mut events = connection.events().unwrap();
    assert!(connection.hypervisor_version().unwrap().starts_with("10."));
    let capabilities = connection.capabilities(Capability::Domain { kvm: false }).unwrap();
    assert!(capabilities.contains("<domain>qemu</domain>"));
    let expanded = connection.expand_cpu(false, "<cpu><model>qemu64</model></cpu>").unwrap();
    assert!(expanded.contains("<feature policy='require' name='sse2'/>"), "{expanded}");
    let vnc = daemon.socket().with_file_name("vnc");
    let domain = connection.define(&XML.replace("SOCKET", &vnc.display().to_string())).unwrap();
    domain.start_paused().unwrap();
    assert!(matches!(domain.state().unwrap(), State::Paused(_)));
    assert!(matches!(events.recv().await, Some(Event::Lifecycle { .. })));

    let answer = domain.monitor_command(r#"{"execute":"query-status"}"#).unwrap();
    assert!(answer.contains(r#""status":"prelaunch""#) || answer.contains(r#""status":"paused""#), "{answer}");
    domain.resume().unwrap();
    let (picture, _) = domain.screenshot().unwrap();
    assert!(!picture.is_empty());
    domain.set_agent_timeout(2).unwrap();
    for refused in [
        domain.agent_command(r#"{"execute":"guest-ping"}"#, 2).err(),
        domain.freeze().err(),
        domain.set_time(1).err(),
        domain.interface_addresses(AddressSource::Agent).err(),
    ] {
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("agent"), "{refused}");
    }

    let disk = daemon.socket().with_file_name("disk");
    std::fs::write(&disk, [0; 4096]).unwrap();
    std::os::unix::fs::chown(&disk, Some(65534), Some(65534)).ok();
    let device = format!("<disk type='file'><source file='{}'/><target dev='sda' bus='scsi'/></disk>", disk.display());
    domain.attach_device(&device).unwrap();
    assert_eq!(domain.block_info("sda").unwrap().capacity, 4096);
    assert!(domain.stats(0).unwrap().iter().any(|figure| figure.name == "block.0.name"));
    domain.detach_device(&device).unwrap();

    domain.destroy().unwrap();
    domain.undefine().unwrap();
    assert!(connection.lookup("probe").err().unwrap().is_no_domain());
}
