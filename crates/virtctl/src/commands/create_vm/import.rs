//! `--volume-import`: the DataVolume template of each kind of source.

use serde_json::{Map, Value, json};

use crate::commands::params::Params;
use crate::fault::Fault;

/// A DataVolume's spec without its storage, and whether a size may be left out.
pub(super) struct Source {
    pub(super) spec: Value,
    pub(super) sized: bool,
}

/// The parameters every source takes.
const COMMON: [&str; 4] = ["type", "name", "size", "bootorder"];

/// A source whose parameters are copied to fields of the API: (parameter, field, refusal when it is missing).
struct Copied {
    kind: &'static str,
    fields: &'static [(&'static str, &'static str, Option<&'static str>)],
}

const COPIED: &[Copied] = &[
    Copied { kind: "blank", fields: &[] },
    Copied {
        kind: "gcs",
        fields: &[("url", "url", Some("url is required with gcs volume source")), ("secretref", "secretRef", None)],
    },
    Copied {
        kind: "http",
        fields: &[
            ("url", "url", Some("url is required with http volume source")),
            ("secretref", "secretRef", None),
            ("certconfigmap", "certConfigMap", None),
            ("extraheaders", "extraHeaders", None),
            ("secretextraheaders", "secretExtraHeaders", None),
        ],
    },
    Copied {
        kind: "imageio",
        fields: &[
            ("url", "url", Some("url and diskid are both required with imageio volume source")),
            ("diskid", "diskId", Some("url and diskid are both required with imageio volume source")),
            ("secretref", "secretRef", None),
            ("certconfigmap", "certConfigMap", None),
        ],
    },
    Copied {
        kind: "registry",
        fields: &[
            ("url", "url", None),
            ("imagestream", "imageStream", None),
            ("pullmethod", "pullMethod", None),
            ("secretref", "secretRef", None),
            ("certconfigmap", "certConfigMap", None),
        ],
    },
    Copied {
        kind: "s3",
        fields: &[
            ("url", "url", Some("url is required with s3 volume source")),
            ("secretref", "secretRef", None),
            ("certconfigmap", "certConfigMap", None),
        ],
    },
    Copied {
        kind: "vddk",
        fields: &[
            ("url", "url", Some("url is required with vddk volume source")),
            ("uuid", "uuid", Some("uuid is required with vddk volume source")),
            ("thumbprint", "thumbprint", Some("thumbprint is required with vddk volume source")),
            ("secretref", "secretRef", Some("secretref is required with vddk volume source")),
            ("backingfile", "backingFile", Some("backingfile is required with vddk volume source")),
            ("initimageurl", "initImageURL", None),
        ],
    },
];

/// Lists are written with semicolons, since commas part parameters.
const LISTS: [&str; 2] = ["extraHeaders", "secretExtraHeaders"];

/// The source `params` describe.
pub(super) fn source(params: &Params<'_>) -> Result<Source, Fault> {
    let kind = params.need("type", "type must be specified")?;
    match kind {
        "pvc" | "snapshot" => {
            params.only(&[&COMMON[..], &["src"]].concat())?;
            let (namespace, name) = params.source()?;
            let namespace =
                namespace.ok_or_else(|| params.wrong(format!("namespace of {kind} \"{name}\" must be specified")))?;
            let found = json!({ "source": { kind: { "name": name, "namespace": namespace } } });
            Ok(Source { spec: found, sized: false })
        }
        "ds" => {
            params.only(&[&COMMON[..], &["src"]].concat())?;
            let (namespace, name) = params.source()?;
            let mut reference = json!({ "kind": "DataSource", "name": name });
            if let Some(namespace) = namespace {
                reference["namespace"] = json!(namespace);
            }
            Ok(Source { spec: json!({ "sourceRef": reference }), sized: false })
        }
        _ => copied(params, kind),
    }
}

fn copied(params: &Params<'_>, kind: &str) -> Result<Source, Fault> {
    let Some(found) = COPIED.iter().find(|copied| copied.kind == kind) else {
        let kinds: Vec<&str> = COPIED.iter().map(|copied| copied.kind).chain(["pvc", "snapshot", "ds"]).collect();
        return Err(params
            .wrong(format!("invalid volume import type \"{kind}\""))
            .hint(format!("supported values are: {}", kinds.join(", "))));
    };
    let names: Vec<&str> = COMMON.into_iter().chain(found.fields.iter().map(|field| field.0)).collect();
    params.only(&names)?;
    let mut fields = Map::new();
    for (name, field, missing) in found.fields {
        match (params.get(name), missing) {
            (Some(value), _) if LISTS.contains(field) => {
                fields.insert((*field).to_owned(), value.split(';').map(str::to_owned).collect());
            }
            (Some(value), _) => {
                fields.insert((*field).to_owned(), value.into());
            }
            (None, Some(missing)) => return Err(params.wrong(missing)),
            (None, None) => {}
        }
    }
    if kind == "registry" {
        if params.get("pullmethod").is_some_and(|method| !["pod", "node"].contains(&method)) {
            return Err(params.wrong("pullmethod must be set to pod or node"));
        }
        if params.get("url").is_some() == params.get("imagestream").is_some() {
            return Err(params.wrong("exactly one of url or imagestream must be defined"));
        }
    }
    Ok(Source { spec: json!({ "source": { kind: fields } }), sized: true })
}

/// Whether an instance type or a preference can be inferred from what `spec` imports.
pub(super) fn tells_its_type(spec: &Value) -> bool {
    let source = spec.get("source");
    spec.get("sourceRef").is_some()
        || ["pvc", "registry", "snapshot"].iter().any(|kind| source.is_some_and(|source| source.get(kind).is_some()))
}
