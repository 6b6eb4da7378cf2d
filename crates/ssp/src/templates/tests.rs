//! What holds of all common templates.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::validator::evaluate::{causes, evaluate, warnings};
use crate::validator::rules;

fn every() -> Vec<Template> {
    Architecture::ALL.into_iter().flat_map(|architecture| all(architecture, false)).collect()
}

fn named(name: &str) -> Template {
    every().into_iter().find(|template| template.name() == name).unwrap()
}

#[test]
fn there_are_as_many_as_documented_and_no_two_have_a_name() {
    let counts = Architecture::ALL.map(|architecture| all(architecture, false).count());
    assert_eq!(counts, [90, 35, 47]);
    let names: BTreeSet<String> = every().iter().map(Template::name).collect();
    assert_eq!(names.len(), 90 + 35 + 47);
    for name in [
        "rhel9-server-small",
        "windows2k22-highperformance-large",
        "fedora-desktop-medium-arm64",
        "rhel8-server-tiny-s390x",
    ] {
        assert!(names.contains(name), "{name}");
    }
    assert!(names.iter().all(|name| name.len() <= 63), "labels of machines hold the name");
}

#[test]
fn each_machine_keeps_the_rules_of_its_template() {
    for template in every() {
        let machine = machine::render(&template);
        let text = machine["metadata"]["annotations"]["vm.kubevirt.io/validations"].as_str().unwrap();
        let entries = rules::parse(text).unwrap();
        let reports = evaluate(&entries, &machine);
        assert_eq!(causes(&reports), [], "{}", template.name());
        let slow = template.system.guest == system::Guest::Windows && template.workload != Workload::HighPerformance;
        assert_eq!(warnings(&reports).len(), usize::from(slow), "{}", template.name());
    }
}

#[test]
fn a_machine_that_is_made_too_small_is_refused() {
    let refused = |name: &str, field: &str, value: Value| {
        let mut machine = machine::render(&named(name));
        *machine.pointer_mut(&format!("/spec/template/spec/domain/{field}")).unwrap() = value;
        let text = machine["metadata"]["annotations"]["vm.kubevirt.io/validations"].as_str().unwrap();
        let entries = rules::parse(text).unwrap();
        causes(&evaluate(&entries, &machine)).into_iter().map(|cause| cause.message).collect::<Vec<_>>()
    };
    let little = "This VM requires more memory.: value 1073741824 is lower than minimum [1610612736]";
    assert_eq!(refused("rhel9-server-tiny", "memory/guest", json!("1Gi")), [little]);
    assert_eq!(refused("rhel9-server-tiny", "memory/guest", json!("1536Mi")), [""; 0]);
    let few = "This VM requires more cores.: value 1 is lower than minimum [2]";
    assert_eq!(
        refused("windows11-desktop-large", "cpu/cores", json!(1)).first().map(String::as_str),
        Some(
            "virtio disk bus type has better performance, install virtio drivers in VM and change bus type: Some of [sata] are not in [virtio]"
        )
    );
    assert!(refused("windows11-desktop-large", "cpu/cores", json!(1)).contains(&few.to_owned()));
    let bus = "disk bus has to be either virtio or sata or scsi: Some of [usb] are not in [virtio, sata, scsi]";
    assert!(refused("windows2k19-server-medium", "devices/disks/0/disk/bus", json!("usb")).contains(&bus.to_owned()));
}

#[test]
fn each_template_boots_from_a_source_that_is_known() {
    let known = [
        "centos-stream9",
        "centos6",
        "fedora",
        "opensuse",
        "rhel7",
        "rhel8",
        "rhel9",
        "ubuntu",
        "win10",
        "win11",
        "win2k16",
        "win2k19",
        "win2k22",
        "win2k25",
    ];
    let found: BTreeSet<String> = every().iter().map(Template::source).collect();
    assert_eq!(found, known.map(str::to_owned).into());
    let several = Template { several: true, ..named("fedora-server-small-arm64") };
    assert_eq!(several.source(), "fedora-arm64");
}

#[test]
fn every_parameter_is_used_and_none_is_missing() {
    for template in every() {
        let object = object::native(&template, "ns", "images");
        let text = object["spec"]["virtualMachine"].to_string();
        let names: Vec<&str> =
            object["spec"]["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        for name in &names {
            assert!(text.contains(&format!("${{{name}}}")), "{}: {name}", template.name());
        }
        let used: BTreeSet<&str> = text.split("${").skip(1).filter_map(|rest| rest.split('}').next()).collect();
        assert_eq!(used, names.into_iter().collect(), "{}", template.name());
    }
}

#[test]
fn a_template_says_what_it_is_in_both_kinds() {
    let template = named("windows11-highperformance-large");
    let native = object::native(&template, "ns", "images");
    let openshift = object::openshift(&template, "ns", "images");
    assert_eq!(native["metadata"]["labels"], openshift["metadata"]["labels"]);
    let labels = json!({
        "os.template.kubevirt.io/win11": "true", "workload.template.kubevirt.io/highperformance": "true",
        "flavor.template.kubevirt.io/large": "true", "template.kubevirt.io/type": "base",
        "template.kubevirt.io/version": "v0.35.0", "template.kubevirt.io/architecture": "amd64",
    });
    assert_eq!(native["metadata"]["labels"], labels);
    assert_eq!(
        (&openshift["objects"][0], &openshift["parameters"]),
        (&native["spec"]["virtualMachine"], &native["spec"]["parameters"])
    );
    let said = |key: &str| native["metadata"]["annotations"][key].clone();
    assert_eq!(said("openshift.io/display-name"), "Microsoft Windows 11 VM");
    assert_eq!(said("name.os.template.kubevirt.io/win11"), "Microsoft Windows 11");
    assert_eq!(said("template.kubevirt.io/version"), "v1alpha1");
    assert_eq!(said("tags"), "hidden,kubevirt,virtualmachine,windows");
    let first = |object: &Value| {
        let text = object["metadata"]["annotations"]["template.kubevirt.io/editable"].as_str().unwrap();
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(first(&openshift), "/objects[0].spec.template.spec.domain.cpu.sockets");
    assert_eq!(first(&native), "/spec.virtualMachine.spec.template.spec.domain.cpu.sockets");
    let parameter = &native["spec"]["parameters"][0];
    assert_eq!((&parameter["name"], &parameter["from"]), (&json!("NAME"), &json!("windows11-[a-z0-9]{6}")));
    let rhel = object::native(&named("rhel9-server-small"), "ns", "images");
    assert_eq!(rhel["spec"]["parameters"][0]["from"], "rhel9-[a-z0-9]{16}");
    assert_eq!(rhel["metadata"]["labels"]["os.template.kubevirt.io/rhel9.8"], "true");
}

#[test]
fn the_machine_fits_its_system_and_architecture() {
    let domain = |name: &str| machine::render(&named(name))["spec"]["template"]["spec"]["domain"].clone();
    let secure = domain("windows11-desktop-medium");
    assert_eq!(secure["firmware"]["bootloader"]["efi"], json!({ "secureBoot": true, "persistent": true }));
    assert_eq!((&secure["devices"]["tpm"]["persistent"], &secure["cpu"]["cores"]), (&json!(true), &json!(2)));
    assert_eq!(domain("windows10-desktop-medium")["firmware"], Value::Null);
    assert_eq!(domain("rhel9-server-tiny")["firmware"]["bootloader"], json!({ "efi": {} }));
    assert_eq!(domain("rhel9-server-tiny-arm64")["firmware"]["bootloader"], json!({ "efi": { "secureBoot": false } }));
    assert_eq!(domain("rhel9-server-tiny-s390x")["firmware"], Value::Null);
    let fast = domain("fedora-highperformance-large");
    assert_eq!(
        fast["cpu"],
        json!({
            "sockets": 2, "cores": 1, "threads": 1, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true,
        })
    );
    assert_eq!(fast["devices"]["networkInterfaceMultiqueue"], true);
    assert_eq!(domain("ubuntu-server-small")["memory"]["guest"], "3Gi");
    let grace =
        |name: &str| machine::render(&named(name))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone();
    assert_eq!((grace("rhel9-server-tiny"), grace("windows2k25-server-large")), (json!(180), json!(3600)));
}

/// The API refuses fields that it does not know, and so does the type here.
#[test]
fn each_machine_is_one_that_kubevirt_knows() {
    for template in every() {
        let machine = machine::render(&template);
        let read: api::kubevirt::v1::VirtualMachine = serde_json::from_value(machine.clone()).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        let spec = "/spec/template/spec";
        assert_eq!(written.pointer(spec), machine.pointer(spec), "{}", template.name());
        assert_eq!(
            written["spec"]["dataVolumeTemplates"][0]["spec"],
            machine["spec"]["dataVolumeTemplates"][0]["spec"]
        );
    }
}
