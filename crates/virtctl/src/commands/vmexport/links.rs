//! Which of an export's links are followed. Pure.

use api::export::constants::{format, manifest};
use api::export::v1::{VirtualMachineExport, VirtualMachineExportLink};
use kube::ResourceExt;

use super::Args;
use crate::fault::Fault;

/// From where the export is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Internal,
    External,
}

impl Side {
    /// From outside, where there is a way and nobody has named another.
    pub(super) fn of(args: &Args, export: &VirtualMachineExport) -> Self {
        let links = export.status.as_deref().and_then(|status| status.links.as_ref());
        let outside = links.is_some_and(|links| links.external.is_some());
        let named = args.port_forward || args.service_url.is_some();
        if outside && !named { Side::External } else { Side::Internal }
    }

    /// The links of this side.
    pub(super) fn links(self, export: &VirtualMachineExport) -> Option<&VirtualMachineExportLink> {
        let links = export.status.as_deref()?.links.as_ref()?;
        match self {
            Side::Internal => links.internal.as_ref(),
            Side::External => links.external.as_ref(),
        }
    }
}

/// What is downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// From where.
    pub(super) url: String,
    /// It is decompressed on the way.
    pub(super) decompress: bool,
    /// The same without compression, where there is such a link: its size is known, and a broken download goes on there.
    pub(super) raw: Option<String>,
}

fn name(export: &VirtualMachineExport) -> String {
    format!("{}/{}", export.namespace().unwrap_or_default(), export.name_any())
}

/// The link to `volume`, or to the only one there is: compressed, because it takes the least time.
pub(super) fn choose(
    export: &VirtualMachineExport,
    side: Side,
    volume: Option<&str>,
    raw: bool,
) -> Result<Chosen, Fault> {
    let name = name(export);
    let volumes = side.links(export).map(|link| link.volumes.as_slice()).unwrap_or_default();
    let names = || volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match (volumes, volume) {
        ([], _) => {
            return Err(Fault::new(format!("unable to access the volume info from '{name}' VirtualMachineExport")));
        }
        ([only], None) => only,
        (_, None) => {
            return Err(Fault::new(format!(
                "detected more than one downloadable volume in '{name}' VirtualMachineExport: Select the expected volume \
                 using the --volume flag"
            ))
            .hint(format!("it has {}", names())));
        }
        (_, Some(wanted)) => volumes.iter().find(|volume| volume.name == wanted).ok_or_else(|| {
            Fault::new(format!("unable to get a valid URL from '{name}' VirtualMachineExport"))
                .because(format!("it has no volume {wanted:?}"))
                .hint(format!("it has {}", names()))
        })?,
    };
    let url = |wanted: &str| found.formats.iter().find(|one| one.format == wanted).map(|one| one.url.clone());
    let plain = url(format::RAW);
    match (url(format::GZIP), url(format::TAR_GZ), plain) {
        (Some(url), _, plain) => Ok(Chosen { url, decompress: raw, raw: plain.filter(|_| raw) }),
        (None, Some(url), _) => Ok(Chosen { url, decompress: raw, raw: None }),
        (None, None, Some(url)) => Ok(Chosen { raw: Some(url.clone()), url, decompress: false }),
        (None, None, None) => Err(Fault::new(format!("unable to get a valid URL from '{name}' VirtualMachineExport"))),
    }
}

/// Where the manifests are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifests {
    pub(super) machine: String,
    pub(super) secret: String,
}

/// The links to the manifests.
pub(super) fn manifests(export: &VirtualMachineExport, side: Side) -> Result<Manifests, Fault> {
    let all = side.links(export).map(|link| link.manifests.as_slice()).unwrap_or_default();
    let url = |kind: &str| all.iter().find(|one| one.type_ == kind).map(|one| one.url.clone());
    url(manifest::ALL)
        .zip(url(manifest::HEADER_SECRET))
        .map(|(machine, secret)| Manifests { machine, secret })
        .ok_or_else(|| {
            Fault::new(format!("unable to access the manifest info from '{}' VirtualMachineExport", name(export)))
                .hint("only exports of virtual machines and of their snapshots have manifests")
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn export(volumes: Value) -> VirtualMachineExport {
        serde_json::from_value(json!({
            "metadata": { "name": "e", "namespace": "ns" }, "spec": { "source": { "kind": "a", "name": "b" } },
            "status": { "links": { "internal": { "cert": "", "volumes": volumes } } },
        }))
        .unwrap()
    }

    fn volume(name: &str, formats: &[&str]) -> Value {
        let formats: Vec<_> =
            formats.iter().map(|format| json!({ "format": format, "url": format!("u/{name}/{format}") })).collect();
        json!({ "name": name, "formats": formats })
    }

    #[track_caller]
    fn check(volumes: Value, wanted: Option<&str>, raw: bool, expect: Result<(&str, bool, Option<&str>), &str>) {
        match (choose(&export(volumes), Side::Internal, wanted, raw), expect) {
            (Ok(found), Ok((url, decompress, raw))) => {
                assert_eq!((found.url.as_str(), found.decompress, found.raw.as_deref()), (url, decompress, raw));
            }
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            (found, expect) => panic!("{found:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn the_compressed_link_is_followed() {
        let disk = volume("a", &["raw", "gzip"]);
        check(json!([disk]), None, false, Ok(("u/a/gzip", false, None)));
        check(json!([disk]), None, true, Ok(("u/a/gzip", true, Some("u/a/raw"))));
        check(json!([disk, volume("b", &["dir", "tar.gz"])]), Some("b"), false, Ok(("u/b/tar.gz", false, None)));
        check(json!([volume("c", &["raw"])]), None, true, Ok(("u/c/raw", false, Some("u/c/raw"))));
        check(json!([disk, volume("b", &["raw"])]), None, false, Err("detected more than one downloadable volume"));
        check(json!([disk]), Some("z"), false, Err("it has no volume \"z\""));
        check(json!([volume("d", &["dir"])]), None, false, Err("unable to get a valid URL"));
        check(json!([]), None, false, Err("unable to access the volume info"));
    }
}
