//! The links of an export: where its volumes and manifests are, from inside of the cluster and from outside. Pure.

use api::export::constants::{endpoint, format, manifest};
use api::export::v1::{
    VirtualMachineExport, VirtualMachineExportBackup, VirtualMachineExportBackupEndpoint, VirtualMachineExportLink,
    VirtualMachineExportLinks, VirtualMachineExportManifest, VirtualMachineExportVolume,
    VirtualMachineExportVolumeFormat,
};
use kube::ResourceExt;

use super::source::{Source, Volume};

/// Path of the manifests of a machine, or of a template of machines.
pub const MACHINE: &str = "/manifests/all";
/// Path of the Secret with which disks are fetched.
pub const SECRET: &str = "/manifests/secret";

/// A host, what every path begins with there, and the authorities that its certificate is checked by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Host and path.
    pub base: String,
    /// PEM.
    pub certificate: String,
}

/// The hosts under which an export is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// From inside of the cluster.
    pub internal: Host,
    /// From outside, when there is a way.
    pub external: Option<Host>,
}

impl Hosts {
    /// Those of `export`, whose Service is `service`.
    pub fn of(export: &VirtualMachineExport, service: &str, bundle: &str, outside: Option<Host>) -> Self {
        let namespace = export.namespace().unwrap_or_default();
        let internal = Host { base: format!("{service}.{namespace}.svc"), certificate: bundle.trim().to_owned() };
        let path =
            format!("api/export.kubevirt.io/v1/namespaces/{namespace}/virtualmachineexports/{}", export.name_any());
        let external = outside.map(|host| Host { base: format!("{}/{path}", host.base), ..host });
        Hosts { internal, external }
    }
}

/// The paths of a claim's volume, by format.
pub fn paths(claim: &str, disk: bool) -> [(&'static str, String); 2] {
    let path = |end: &str| format!("/volumes/{claim}/{end}");
    match disk {
        true => [(format::RAW, path("disk.img")), (format::GZIP, path("disk.img.gz"))],
        false => [(format::DIR, path("dir/")), (format::TAR_GZ, path("disk.tar.gz"))],
    }
}

/// The paths of a backup's volume, by endpoint.
pub fn backup_paths(volume: &str) -> [(&'static str, String); 2] {
    [endpoint::DATA, endpoint::MAP].map(|endpoint| (endpoint, format!("/exports/{volume}/{endpoint}")))
}

/// The links of what is served.
pub fn links(source: &Source, hosts: &Hosts) -> VirtualMachineExportLinks {
    VirtualMachineExportLinks {
        internal: Some(link(source, &hosts.internal, "internal")),
        external: hosts.external.as_ref().map(|host| link(source, host, "external")),
    }
}

fn link(source: &Source, host: &Host, side: &str) -> VirtualMachineExportLink {
    let base = format!("https://{}", host.base);
    let manifest = |kind: &str, path: &str| VirtualMachineExportManifest {
        type_: kind.to_owned(),
        url: format!("{base}/{side}{path}"),
    };
    let pulled = source.backup.iter().flat_map(|backup| &backup.volumes);
    let machine = source.has_manifests().then(|| manifest(manifest::ALL, MACHINE));
    VirtualMachineExportLink {
        cert: host.certificate.clone(),
        manifests: machine.into_iter().chain([manifest(manifest::HEADER_SECRET, SECRET)]).collect(),
        volumes: source.volumes.iter().map(|volume| shown(volume, &base)).collect(),
        backups: pulled.map(|volume| backed_up(volume, &base)).collect(),
    }
}

fn backed_up(volume: &str, base: &str) -> VirtualMachineExportBackup {
    let endpoints = backup_paths(volume).into_iter().map(|(endpoint, path)| VirtualMachineExportBackupEndpoint {
        endpoint: endpoint.to_owned(),
        url: format!("{base}{path}"),
    });
    VirtualMachineExportBackup { name: volume.to_owned(), endpoints: endpoints.collect() }
}

fn shown(volume: &Volume, base: &str) -> VirtualMachineExportVolume {
    let formats = paths(&volume.claim.name_any(), volume.disk).into_iter().map(|(format, path)| {
        VirtualMachineExportVolumeFormat {
            format: format.to_owned(),
            // As clients have always been given it: without the slash that the server adds.
            url: format!("{base}{}", path.trim_end_matches('/')),
        }
    });
    VirtualMachineExportVolume { name: volume.name.clone(), formats: formats.collect() }
}
