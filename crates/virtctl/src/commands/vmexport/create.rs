//! The export itself, and its token.

use api::export::v1::VirtualMachineExport;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Args, flags};
use crate::connect::Cluster;
use crate::fault::Fault;

/// Letters and digits of a token.
const TOKEN_LENGTH: usize = 20;

fn source(args: &Args) -> Value {
    let kinds = [
        (&args.vm, "kubevirt.io", "VirtualMachine"),
        (&args.snapshot, "snapshot.kubevirt.io", "VirtualMachineSnapshot"),
        (&args.pvc, "", "PersistentVolumeClaim"),
        (&args.vmtemplate, "template.kubevirt.io", "VirtualMachineTemplate"),
    ];
    let given = kinds.into_iter().find_map(|(name, group, kind)| Some((name.as_ref()?, group, kind)));
    given.map_or(Value::Null, |(name, group, kind)| json!({ "apiGroup": group, "kind": kind, "name": name }))
}

/// Makes the export that the flags describe.
pub(super) async fn create(cluster: &Cluster, args: &Args) -> Result<(), Fault> {
    let (namespace, name) = (&cluster.namespace, &args.name);
    let what = format!("cannot create VirtualMachineExport {namespace}/{name}");
    let secret = format!("secret-{name}");
    let manifest = json!({
        "metadata": { "name": name, "labels": flags::pairs(&args.labels), "annotations": flags::pairs(&args.annotations) },
        "spec": { "source": source(args), "tokenSecretRef": secret, "ttlDuration": args.ttl },
    });
    let wanted: VirtualMachineExport =
        serde_json::from_value(manifest).map_err(|error| Fault::new(&what).because(error))?;
    let api: Api<VirtualMachineExport> = Api::namespaced(cluster.client.clone(), namespace);
    let made = match api.create(&PostParams::default(), &wanted).await {
        Ok(made) => made,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let mut fault = Fault::new(format!("VirtualMachineExport '{namespace}/{name}' already exists"));
            fault.status = Some(409);
            return Err(fault);
        }
        Err(error) => return Err(Fault::api(what, &error)),
    };
    token(cluster, &made, &secret).await?;
    args.say(&format!("VirtualMachineExport '{namespace}/{name}' created succesfully"));
    Ok(())
}

/// Makes the Secret with the token. One that is there already is somebody's choice.
async fn token(cluster: &Cluster, export: &VirtualMachineExport, name: &str) -> Result<(), Fault> {
    let token: String =
        (0..TOKEN_LENGTH).map(|_| char::from(rand::Rng::sample(&mut rand::rng(), rand::distr::Alphanumeric))).collect();
    let secret = json!({
        "metadata": { "name": name, "ownerReferences": [{
            "apiVersion": "export.kubevirt.io/v1", "kind": "VirtualMachineExport", "name": export.name_any(),
            "uid": export.uid(), "controller": true, "blockOwnerDeletion": false,
        }] },
        "type": "Opaque",
        "stringData": { "token": token },
    });
    let what = format!("cannot create Secret {}/{name}", cluster.namespace);
    let secret: Secret = serde_json::from_value(secret).map_err(|error| Fault::new(&what).because(error))?;
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match api.create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(Fault::api(what, &error)),
        Ok(_) => Ok(()),
    }
}

/// Deletes the export.
pub(super) async fn delete(cluster: &Cluster, args: &Args) -> Result<(), Fault> {
    let (namespace, name) = (&cluster.namespace, &args.name);
    let api: Api<VirtualMachineExport> = Api::namespaced(cluster.client.clone(), namespace);
    let done = match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => "does not exist",
        Err(error) => return Err(Fault::api(format!("cannot delete VirtualMachineExport {namespace}/{name}"), &error)),
        Ok(_) => "deleted succesfully",
    };
    args.say(&format!("VirtualMachineExport '{namespace}/{name}' {done}"));
    Ok(())
}
