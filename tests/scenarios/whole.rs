//! The product as a whole: one object, and a machine of a common template that has its disk of a boot source, an address of the pool on a
//! bridge, and a name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase};
use e2e::servers::registry::Registry;
use e2e::wait::{BOOT, SOON, until};
use e2e::{Console, Namespace, dns, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_machine_of_a_template_has_its_disk_its_address_and_its_name", a_machine_has_all)]
}

const SOURCE: &str = "demo";
const BOOT_IMAGES: &str = "kubevirt-os-images";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);
const DNS_PORT: u16 = 5353;

/// What the object is asked for beside what it has, and no more when this ends.
struct Asked;

impl Asked {
    /// A boot source that follows the image of a registry, and names for secondary networks.
    fn of(image: &str) -> Result<Self> {
        let source = json!({ "registry": { "url": format!("docker://{image}"), "certConfigMap": "authorities" } });
        let storage = json!({ "resources": { "requests": { "storage": "128Mi" } } });
        let cron = json!({
            "metadata": { "name": SOURCE },
            "spec": {
                "managedDataSource": SOURCE, "schedule": "0 0 1 1 *", "garbageCollect": "Outdated",
                "template": { "spec": { "source": source, "storage": storage } },
            },
        });
        product::merge(&json!({
            "workloadSources": { "dataImportCronTemplates": [cron] },
            "featureGates": [{ "name": "deployKubeSecondaryDNS" }],
        }))?;
        Ok(Asked)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let nothing = json!({ "workloadSources": { "dataImportCronTemplates": null }, "featureGates": null });
        // Whoever comes next finds its own object in the way, and says so.
        let _ = product::merge(&nothing);
    }
}

fn a_machine_has_all() -> Result<()> {
    let space = Namespace::new("whole")?;
    let registry = Registry::secure()?;
    let disk = std::fs::read(images()?.join("guest/disk.qcow2")).context("the demo's disk is not built")?;
    let image = registry.push("images/demo:latest", &[("disk/disk.qcow2", &disk)])?;
    let authorities = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities" },
        "data": { "registry.pem": registry.certificate } });
    Namespace::apply_in(BOOT_IMAGES, &authorities)?;
    let _asked = Asked::of(&image)?;
    let config = json!({ "cniVersion": "0.3.1", "name": "lan", "type": "cnv-bridge", "bridge": "br-whole" });
    space.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": "lan" },
        "spec": { "config": config.to_string() },
    }))?;
    until("the boot source to be ready", BOOT, || {
        let words = ["get", "datasource", SOURCE, "--ignore-not-found", "-o", "json"];
        let found: Value = serde_json::from_str(&Namespace::kubectl_in(BOOT_IMAGES, &words)?).unwrap_or_default();
        Ok(holds(&found, "Ready").then_some(()))
    })?;

    let parameters = [
        "NAME=whole",
        "DATA_SOURCE_NAME=demo",
        "DATA_SOURCE_NAMESPACE=kubevirt-os-images",
        "CLOUD_USER_PASSWORD=guest",
    ];
    let parameters: Vec<&str> = parameters.into_iter().flat_map(|parameter| ["-p", parameter]).collect();
    let words = ["template", "process", "ubuntu-server-small", "-n", product::NAMESPACE, "-o", "json"];
    let mut vm: Value =
        serde_json::from_str(&space.virtctl(&[&words[..], &parameters].concat())?).context("virtctl's JSON")?;
    let add = |list: &mut Value, item: Value| list.as_array_mut().map(|list| list.push(item));
    add(&mut machine::spec(&mut vm)["networks"], json!({ "name": "lan", "multus": { "networkName": "lan" } }));
    add(&mut machine::domain(&mut vm)["devices"]["interfaces"], json!({ "name": "lan", "bridge": {} }));
    vm["spec"]["runStrategy"] = json!("Always");
    vm["spec"]["dataVolumeTemplates"][0]["spec"]["storage"]["resources"]["requests"]["storage"] = json!("256Mi");
    space.apply(&vm)?;
    let vmi = space.wait("vmi", "whole", "ran", |vmi| phase(vmi) == "Running")?;
    let mac = vmi["spec"]["domain"]["devices"]["interfaces"][1]["macAddress"].as_str().unwrap_or_default().to_owned();
    ensure!(mac.starts_with("02:"), "{mac:?} is not of the pool");

    let mut console = Console::open(&space, "whole")?;
    console.log_in("root", "guest")?;
    let set = format!("cat /sys/class/net/eth1/address; ip link set eth1 up && ip addr add {ADDRESS}/24 dev eth1");
    let (said, code) = console.run(&set)?;
    ensure!(code == 0 && said.trim() == mac, "{said:?} with code {code}, for {mac}");
    console.leave()?;
    let name = format!("lan.whole.{}.vm", space.name());
    until("the machine's name to be known", SOON, || {
        Ok((dns::address(server()?, &name)? == Some(ADDRESS)).then_some(()))
    })?;
    let (_, other) = (drop(space.kubectl(&["delete", "vm", "whole"])?), name);
    until("the name to be forgotten", SOON, || Ok(dns::address(server()?, &other)?.is_none().then_some(())))
}

/// The name server, once it runs.
fn server() -> Result<SocketAddr> {
    until("the name server", SOON, || {
        let pods = product::get(&["pods", "-l", "k8s-app=secondary-dns"])?;
        let ip = pods["items"][0]["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
        Ok(ip.map(|ip| SocketAddr::new(ip, DNS_PORT)))
    })
}

/// Where the images are built.
fn images() -> Result<std::path::PathBuf> {
    let place =
        std::env::var_os("FERROVIRT_IMAGES").context("FERROVIRT_IMAGES says where images are built: it is not set")?;
    Ok(place.into())
}
