//! What a preference is made of: the base of its kind of guest, and what differs from that.

use serde_json::{Value, json};

use super::{PREFERENCES, object};

/// Where who uses them reads more.
const PRODUCT: &str = "https://ferrovirt.example";

/// A cluster-wide preference.
#[derive(Clone, Debug)]
pub(super) struct Preference {
    pub(super) name: String,
    /// The name of the operating system, for people.
    pub(super) display: String,
    /// Virtual processors and memory that the guest needs at least.
    pub(super) needs: Option<(u32, &'static str)>,
    pub(super) differs: Vec<Difference>,
}

/// What a preference sets beside, or other than, its base.
#[derive(Clone, Copy, Debug)]
pub(super) enum Difference {
    /// There is the guest for this architecture alone.
    Only(&'static str),
    /// Bus of disks.
    Disk(&'static str),
    /// Model of interfaces.
    Interface(&'static str),
    /// Type of the video device.
    Video(&'static str),
    /// Each disk has a thread.
    DedicatedIoThread,
    /// A pointer that has a position: users of a desktop have no second cursor.
    Tablet,
    /// Processors are sockets, cores and threads; this many cores a socket, or as many as is usual.
    Spread(Option<u32>),
    /// A queue of each interface for each processor.
    Multiqueue,
    /// Nothing but a serial console, and memory that stays.
    Headless,
    /// UEFI firmware that boots whatever there is.
    Efi,
    /// UEFI firmware that boots what is signed.
    SecureBoot,
    /// The same, with variables and a TPM that outlive a restart.
    SecureBootAndTpm,
    /// Virtio as drivers before version 1.0 know it.
    Transitional,
    /// An annotation of the machine.
    Annotation(&'static str, &'static str),
}

impl Difference {
    fn apply(self, spec: &mut Value) {
        let devices = &mut spec["devices"];
        match self {
            Difference::Disk(bus) => devices["preferredDiskBus"] = json!(bus),
            Difference::Interface(model) => devices["preferredInterfaceModel"] = json!(model),
            Difference::Video(kind) => devices["preferredVideoType"] = json!(kind),
            Difference::DedicatedIoThread => devices["preferredDiskDedicatedIoThread"] = json!(true),
            Difference::Multiqueue => devices["preferredNetworkInterfaceMultiQueue"] = json!(true),
            Difference::Transitional => devices["preferredUseVirtioTransitional"] = json!(true),
            Difference::Tablet => {
                devices["preferredAutoattachInputDevice"] = json!(true);
                devices["preferredInputBus"] = json!("virtio");
                devices["preferredInputType"] = json!("tablet");
            }
            Difference::Headless => {
                devices["preferredAutoattachGraphicsDevice"] = json!(false);
                devices["preferredAutoattachMemBalloon"] = json!(false);
                devices["preferredAutoattachSerialConsole"] = json!(true);
            }
            Difference::SecureBootAndTpm => {
                devices["preferredTPM"] = json!({ "persistent": true });
                Difference::SecureBoot.apply(spec);
                spec["firmware"]["preferredEfi"]["persistent"] = json!(true);
            }
            Difference::SecureBoot => {
                // The firmware keeps its keys where only system management mode writes.
                spec["features"]["preferredSmm"] = json!({});
                spec["firmware"]["preferredEfi"] = json!({ "secureBoot": true });
            }
            Difference::Efi => spec["firmware"]["preferredEfi"] = json!({ "secureBoot": false }),
            Difference::Only(architecture) => {
                spec["preferredArchitecture"] = json!(architecture);
                spec["requirements"]["architecture"] = json!(architecture);
            }
            Difference::Spread(ratio) => {
                spec["cpu"]["preferredCPUTopology"] = json!("spread");
                spec["cpu"]["spreadOptions"] = json!({ "across": "SocketsCoresThreads" });
                if let Some(ratio) = ratio {
                    spec["cpu"]["spreadOptions"]["ratio"] = json!(ratio);
                }
            }
            Difference::Annotation(key, value) => spec["annotations"][key] = json!(value),
        }
    }
}

impl Preference {
    /// The object of a guest of the kind `os`, of which `base` is preferred in general.
    pub(super) fn render(&self, os: &str, mut base: Value) -> Value {
        let mut labels = vec![("os-type", os.to_owned())];
        if let Some((cpus, memory)) = self.needs {
            base["requirements"] = json!({ "cpu": { "guest": cpus }, "memory": { "guest": memory } });
            labels.push(("required-cpu", cpus.to_string()));
            labels.push(("required-memory", memory.to_owned()));
        }
        for difference in &self.differs {
            difference.apply(&mut base);
            if let Difference::Only(architecture) = difference {
                let keys = ["arch", "preferred-architecture", "required-architecture"];
                labels.extend(keys.map(|key| (key, (*architecture).to_owned())));
            }
        }
        base["annotations"]["vm.kubevirt.io/os"] = json!(os);
        let family = self.name.split('.').next().unwrap_or_default();
        let tags =
            if family == os { format!("hidden,kubevirt,{os}") } else { format!("hidden,kubevirt,{os},{family}") };
        let annotations = json!({
            "iconClass": format!("icon-{family}"), "tags": tags,
            "openshift.io/display-name": self.display,
            "openshift.io/provider-display-name": "Ferrovirt",
            "openshift.io/documentation-url": PRODUCT,
            "openshift.io/support-url": PRODUCT,
        });
        object(PREFERENCES.0, &self.name, &labels, &annotations, &base)
    }
}
