//! Disks of every source and format come from the servers that people have, and boot.

use anyhow::Result;
use e2e::Namespace;
use e2e::servers::registry::Registry;
use e2e::servers::s3::Store;
use e2e::servers::web::Web;
use e2e::servers::{s3, web};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::data_volume::{apply, succeeded, volume};
use crate::long;

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("disks_of_every_source_and_format_boot", disks_of_every_source_and_format_boot)]
}

const SIZE: &str = "8Mi";

/// The source of a file of the web server.
type Place = fn(&Web, &str) -> Value;

fn plain(web: &Web, file: &str) -> Value {
    json!({ "http": { "url": web.url(file) } })
}

fn redirected(web: &Web, file: &str) -> Value {
    json!({ "http": { "url": web.url(&format!("moved/{file}")) } })
}

fn secure(web: &Web, file: &str) -> Value {
    json!({ "http": { "url": web.secure_url(file), "certConfigMap": "authorities" } })
}

fn behind_a_password(web: &Web, file: &str) -> Value {
    json!({ "http": { "url": web.url(&format!("private/{file}")), "secretRef": "reader" } })
}

const FORMATS: [(&str, Place); 11] = [
    ("raw", plain),
    ("qcow2", secure),
    ("vmdk", behind_a_password),
    ("vdi", redirected),
    ("vhd", plain),
    ("vhdx", secure),
    ("iso", plain),
    ("raw.gz", behind_a_password),
    ("raw.xz", plain),
    ("qcow2.zst", secure),
    ("raw.bz2", redirected),
];

fn secret(name: &str, key: &str, password: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "accessKeyId": key, "secretKey": password } })
}

fn disks_of_every_source_and_format_boot() -> Result<()> {
    let space = Namespace::new("imports")?;
    let (web, registry, store) = (Web::start()?, Registry::secure()?, Store::start()?);
    let _named = registry.named_to_nodes()?;
    let authorities = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities" },
        "data": { "web.pem": web.certificate, "registry.pem": registry.certificate } });
    let mut objects =
        vec![authorities, secret("reader", web::USER, web::PASSWORD), secret("owner", s3::KEY, s3::SECRET)];

    let mut chain = Chain::default();
    for (format, place) in FORMATS {
        let name = format.replace('.', "-");
        web.put(&name, &chain.image(&name, format)?)?;
        objects.push(volume(&name, SIZE, &place(&web, &name)));
    }
    for method in ["pod", "node"] {
        let file = chain.image(method, "qcow2")?;
        let image = registry.push(&format!("disks/{method}:v1"), &[("disk/disk.qcow2", &file)])?;
        let url = format!("docker://{image}");
        let source = json!({ "url": url, "pullMethod": method, "certConfigMap": "authorities" });
        objects.push(volume(method, SIZE, &json!({ "registry": source })));
    }
    store.put("disk.gz", &chain.image("bucket", "raw.gz")?)?;
    objects.push(volume("bucket", SIZE, &json!({ "s3": { "url": store.url("disk.gz"), "secretRef": "owner" } })));
    objects.push(volume("blank", SIZE, &json!({ "blank": {} })));
    apply(&space, objects)?;

    let upload = tempfile::NamedTempFile::new()?;
    std::fs::write(upload.path(), chain.image("upload", "vhdx")?)?;
    let path = format!("--image-path={}", upload.path().display());
    let size = format!("--size={SIZE}");
    space.virtctl(&["image-upload", "dv", "upload", &size, &path, "--force-bind", "--insecure"])?;
    for name in chain.names().chain(["blank"]) {
        succeeded(&space, name)?;
    }

    // Copies: of a volume, and of one as it was in a snapshot.
    let taken = json!({ "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "name": "taken" },
        "spec": { "source": { "persistentVolumeClaimName": "vdi" } } });
    let from = |kind: &str, name: &str| json!({ kind: { "name": name, "namespace": space.name() } });
    let copies = [volume("copy", SIZE, &from("pvc", "vhd")), volume("restored", SIZE, &from("snapshot", "taken"))];
    apply(&space, [vec![taken], copies.to_vec()].concat())?;
    for (name, source) in [("copy", "vhd"), ("restored", "vdi")] {
        succeeded(&space, name)?;
        chain.copied(name, source);
    }
    chain.boot(&space)
}
