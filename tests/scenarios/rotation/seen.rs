//! Which certificates there were: leaves, authorities, and what clients were told to trust meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use e2e::{Namespace, product};
use serde_json::Value;

/// HyperConverged's own, which live for ten minutes at least.
const OWN: &str = "hyperconverged-cluster-webhook-signer";
/// Those of the operator of templates live for a week, and nobody can have it otherwise.
const FIXED: [&str; 4] =
    ["virt-template-validator-signer", "virt-template-validator-certs", "vm-console-proxy-cert", "ssp-operator"];
/// By which requests for certificates of nodes are known.
const SIGNER: &str = "virt-handler";

/// All that was seen.
#[derive(Default)]
pub(super) struct Seen {
    /// Certificates of servers and clients, by Secret.
    leaves: BTreeMap<String, BTreeSet<String>>,
    /// Authorities, by Secret, in the order in which they came to sign.
    authorities: BTreeMap<String, Vec<String>>,
    /// Of each node's agent.
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// What was wrong at some moment.
    wrong: BTreeSet<String>,
}

/// The certificates of a PEM, without what is around their text.
fn blocks(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let all = pem.split_inclusive(END).filter(|block| block.contains(END));
    all.map(|block| block.trim().to_owned()).collect()
}

fn text(secret: &Value, key: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(secret["data"][key].as_str()?).ok()?;
    String::from_utf8(bytes).ok().map(|pem| pem.trim().to_owned())
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The ConfigMap with the bundle of an authority's Secret.
fn bundle_of(authority: &str) -> String {
    match authority {
        "kubevirt-export-ca" | "kubevirt-ca" => authority.to_owned(),
        OWN => "hyperconverged-cluster-webhook-bundle".to_owned(),
        "kubevirt-ipam-controller-ca" => "kubevirt-ipam-controller-serving-ca-bundle".to_owned(),
        other => format!("{other}-bundle"),
    }
}

impl Seen {
    /// Looks at what there is now.
    pub(super) fn look(&mut self) -> Result<()> {
        let all = product::get(&["secrets,configmaps"])?;
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let of = |kind: &str| all.iter().filter(|object| object["kind"] == kind).cloned().collect::<Vec<_>>();
        let maps = of("ConfigMap");
        for secret in of("Secret") {
            let (secret_name, Some(certificate)) = (name(&secret), text(&secret, "tls.crt")) else { continue };
            if FIXED.iter().any(|fixed| secret_name.starts_with(fixed)) {
                continue;
            }
            if secret["type"] == "kubernetes.io/tls" {
                self.leaves.entry(secret_name).or_default().insert(certificate);
                continue;
            }
            let known = self.authorities.entry(secret_name.clone()).or_default();
            if known.last() != Some(&certificate) {
                known.push(certificate.clone());
            }
            let wanted = bundle_of(&secret_name);
            let map = maps.iter().find(|map| name(map) == wanted).with_context(|| format!("no ConfigMap {wanted}"))?;
            let bundle: BTreeSet<String> = map["data"]
                .as_object()
                .into_iter()
                .flat_map(|data| data.values())
                .filter_map(Value::as_str)
                .flat_map(blocks)
                .collect();
            let before = known.iter().rev().nth(1).cloned();
            // A list is not of one moment: the bundle is written before the authority, and read before it.
            for (what, one) in [("the one that signs", Some(certificate)), ("the one before", before)] {
                if one.is_some_and(|one| !bundle.contains(&one)) {
                    self.wrong.insert(format!("{wanted} lacks {what} of {} authorities", known.len()));
                }
            }
        }
        self.look_at_nodes()
    }

    fn look_at_nodes(&mut self) -> Result<()> {
        let requests = Namespace::kubectl_in("default", &["get", "csr", "-o", "json"])?;
        let requests: Value = serde_json::from_str(&requests).context("kubectl's JSON")?;
        for request in requests["items"].as_array().into_iter().flatten() {
            let node =
                request["spec"]["extra"]["authentication.kubernetes.io/node-name"][0].as_str().unwrap_or_default();
            if name(request).starts_with(SIGNER) && request["status"]["certificate"].is_string() {
                self.nodes.entry(node.to_owned()).or_default().insert(name(request));
            }
        }
        Ok(())
    }

    /// Whether each of them was followed by so many others, HyperConverged's own authority by `own`.
    pub(super) fn is_done(&self, rotations: usize, own: usize) -> bool {
        let leaves = self.leaves.values().chain(self.nodes.values()).all(|all| all.len() > rotations);
        let authorities =
            self.authorities.iter().all(|(name, all)| all.len() > if name == OWN { own } else { rotations });
        leaves && authorities && self.leaves.len() >= 10 && self.authorities.len() >= 8 && self.nodes.len() == 2
    }

    /// At every moment the authority that signed, and the one before it, were trusted; none came back.
    pub(super) fn overlapped(&self) -> Result<()> {
        ensure!(self.wrong.is_empty(), "{:?}", self.wrong);
        for (name, all) in &self.authorities {
            let distinct: BTreeSet<_> = all.iter().collect();
            ensure!(distinct.len() == all.len(), "an authority of {name} came back");
        }
        Ok(())
    }

    /// How many there were of each.
    pub(super) fn counts(&self) -> String {
        let authorities = self.authorities.iter().map(|(name, all)| (name, all.len()));
        let leaves = self.leaves.iter().chain(&self.nodes).map(|(name, all)| (name, all.len()));
        authorities.chain(leaves).map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }
}
