//! The machine: type, firmware, kernel, and what it says of itself in SMBIOS.

use api::kubevirt::v1::{DomainSpec, VirtualMachineInstance};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::environment::Smbios;
use crate::xml::Element;
use crate::{Environment, topology};

/// The firmware's UUID, or one that is always the same for this VMI.
pub(crate) fn uuid(vmi: &VirtualMachineInstance) -> String {
    let firmware = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.uuid.clone());
    firmware.filter(|uuid| Uuid::parse_str(uuid).is_ok()).unwrap_or_else(|| {
        let seed = format!(
            "{}/{}",
            vmi.metadata.namespace.as_deref().unwrap_or_default(),
            vmi.metadata.name.as_deref().unwrap_or_default()
        );
        let digest = Sha256::digest(seed.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
    })
}

pub(crate) fn type_of(spec: &DomainSpec, environment: &Environment) -> String {
    let named = spec.machine.as_ref().and_then(|machine| machine.type_.clone()).filter(|kind| !kind.is_empty());
    named.unwrap_or_else(|| if environment.machine.is_empty() { "q35".to_owned() } else { environment.machine.clone() })
}

/// Secure boot needs system management mode, which holds the variables.
pub(crate) fn secure_boot(spec: &DomainSpec) -> bool {
    efi(spec).is_some_and(|efi| efi.secure_boot.unwrap_or(true))
}

pub(crate) fn efi(spec: &DomainSpec) -> Option<&api::kubevirt::v1::EFI> {
    spec.firmware.as_ref()?.bootloader.as_ref()?.efi.as_ref()
}

pub(crate) fn on_reboot(spec: &DomainSpec) -> &'static str {
    if spec.reboot_policy.as_deref() == Some("Terminate") { "destroy" } else { "restart" }
}

pub(crate) fn os(spec: &DomainSpec, environment: &Environment) -> Element {
    let mut os = Element::new("os")
        .child(Element::with_text("type", "hvm").attr("arch", "x86_64").attr("machine", type_of(spec, environment)));
    if efi(spec).is_some() {
        let files = &environment.firmware;
        let secure = secure_boot(spec);
        let (code, vars) = if secure { (&files.secure_code, &files.secure_vars) } else { (&files.code, &files.vars) };
        os = os
            .child(
                Element::with_text("loader", code)
                    .attr("readonly", "yes")
                    .attr("secure", if secure { "yes" } else { "no" })
                    .attr("type", "pflash"),
            )
            .child(Element::with_text("nvram", &files.nvram).attr("template", vars));
    }
    if let Some(kernel) = &environment.kernel {
        let arguments = spec.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref()?.kernel_args.clone());
        os = os
            .children(kernel.kernel.as_ref().map(|path| Element::with_text("kernel", path)))
            .children(kernel.initrd.as_ref().map(|path| Element::with_text("initrd", path)))
            .children(arguments.map(|arguments| Element::with_text("cmdline", arguments)));
    }
    let bios = spec.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref()?.bios.as_ref());
    if bios.is_some_and(|bios| bios.use_serial == Some(true)) {
        os = os.child(Element::new("bios").attr("useserial", "yes"));
    }
    if topology::is_microvm(&type_of(spec, environment)) {
        return os;
    }
    os.child(Element::new("smbios").attr("mode", "sysinfo"))
}

pub(crate) fn sysinfo(vmi: &VirtualMachineInstance, uuid: &str, smbios: &Smbios) -> Element {
    let spec = &vmi.spec.domain;
    let or = |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
    let entry = |name: &str, value: String| Element::with_text("entry", value).attr("name", name);
    let mut system = Element::new("system")
        .child(entry("manufacturer", or(&smbios.manufacturer, "KubeVirt")))
        .child(entry("product", or(&smbios.product, "None")));
    if !smbios.version.is_empty() {
        system = system.child(entry("version", smbios.version.clone()));
    }
    let serial = spec.firmware.as_ref().and_then(|firmware| firmware.serial.clone());
    system = system.children(serial.map(|serial| entry("serial", serial))).child(entry("uuid", uuid.to_owned()));
    if !smbios.sku.is_empty() {
        system = system.child(entry("sku", smbios.sku.clone()));
    }
    system = system.child(entry("family", or(&smbios.family, "KubeVirt")));
    let mut sysinfo = Element::new("sysinfo").attr("type", "smbios").child(system);
    if let Some(chassis) = &spec.chassis {
        let mut element = Element::new("chassis");
        for (name, value) in [
            ("manufacturer", &chassis.manufacturer),
            ("version", &chassis.version),
            ("serial", &chassis.serial),
            ("asset", &chassis.asset),
            ("sku", &chassis.sku),
        ] {
            element = element.children(value.clone().filter(|v| !v.is_empty()).map(|value| entry(name, value)));
        }
        if !element.is_empty() {
            sysinfo = sysinfo.child(element);
        }
    }
    sysinfo
}
