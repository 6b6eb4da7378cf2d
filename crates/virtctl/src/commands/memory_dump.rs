//! `virtctl memory-dump`: a guest's memory as a file on a claim, and from there as a file of this machine.

use std::process::ExitCode;
use std::time::Duration;

use api::kubevirt::memory_dump::{DEFAULT_OVERHEAD, claim_size, expected_size, overhead, request as phase};
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use meta::quantity::Amount;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{request, vmexport};
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// How long a dump is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
const INTERVAL: Duration = Duration::from_millis(500);
/// The export begins while the claim is still on its way from the guest's node.
const RETRIES: i64 = 2;

/// Dump the memory of a running virtual machine to a claim.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl memory-dump get myvm --claim-name=memoryvolume                  onto a claim that is there
  virtctl memory-dump get myvm --claim-name=memoryvolume --create-claim   and make the claim
  virtctl memory-dump get myvm                                            once more, onto the same claim
  virtctl memory-dump download myvm --output=memory.dump.tar.gz
  virtctl memory-dump remove myvm                                         the machine lets go of the claim, which stays")]
pub(crate) struct Args {
    /// get, download or remove.
    #[arg(value_name = "FUNCTION")]
    function: String,
    /// Name of the virtual machine.
    #[arg(value_name = "VM")]
    name: String,
    /// The claim to dump the memory to.
    #[arg(long, value_name = "NAME", default_value = "")]
    claim_name: String,
    /// Make the claim, as large as it has to be.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    create_claim: bool,
    /// Storage class of the claim.
    #[arg(long, value_name = "NAME", default_value = "")]
    storage_class: String,
    /// Access mode of the claim: ReadWriteOnce or ReadWriteMany.
    #[arg(long, value_name = "MODE", default_value = "")]
    access_mode: String,
    /// Download the dump to this file, an archive of the claim.
    #[arg(long, value_name = "FILE", default_value = "")]
    output: String,
    /// What the file is to be: gzip, which is the default, or raw.
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Download through the API server, which needs neither an Ingress nor a Route.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    port_forward: bool,
    /// Local port for that; 0 is any that is free.
    #[arg(long, value_name = "PORT", default_value = "0")]
    local_port: String,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Get,
    Download,
    Remove,
}

/// What the flags say, if they go together.
fn function(args: &Args) -> Result<Function, Fault> {
    let function = match args.function.as_str() {
        "get" => Function::Get,
        "download" => Function::Download,
        "remove" => Function::Remove,
        other => {
            return Err(Fault::usage(format!("invalid action type {other}")).hint("get, download and remove are"));
        }
    };
    if function == Function::Get && args.create_claim {
        if args.claim_name.is_empty() {
            return Err(Fault::usage("missing claim name").hint("--claim-name names the claim that is to be made"));
        }
        mode(args)?;
    }
    if function == Function::Download && args.output.is_empty() {
        return Err(Fault::usage("missing outputFile to download the memory dump").hint("--output names the file"));
    }
    if args.format.as_deref().is_some_and(|format| !matches!(format, "" | "gzip" | "gzipped" | "raw")) {
        return Err(Fault::usage("--format is not a valid value, acceptable values are gzip/raw"));
    }
    Ok(function)
}

/// The access mode of a claim that is made.
fn mode(args: &Args) -> Result<&str, Fault> {
    match args.access_mode.as_str() {
        "" | "ReadWriteOnce" => Ok("ReadWriteOnce"),
        "ReadWriteMany" => Ok("ReadWriteMany"),
        "ReadOnlyMany" => Err(Fault::usage(
            "cannot dump memory to a readonly pvc, use either ReadWriteOnce or ReadWriteMany if supported",
        )),
        _ => Err(Fault::usage("invalid access mode, use either ReadWriteOnce or ReadWriteMany if supported")),
    }
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let function = function(&args)?;
    let mut cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    cluster.namespace = namespace;
    match function {
        Function::Get => get(&cluster, &name, &args).await?,
        Function::Download => download(&cluster, &name, &args).await?,
        Function::Remove => {
            let vm = (cluster.namespace.as_str(), name.as_str());
            let answer = request::put(&cluster, Kind::Vm, vm, "removememorydump", &Value::Null).await;
            answer.map_err(|fault| fault.of("error removing memory dump association"))?;
            output::say(&format!("Successfully submitted remove memory dump association of VM {name}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(cluster: &Cluster, name: &str, args: &Args) -> Result<(), Fault> {
    if args.create_claim {
        create(cluster, name, args).await?;
    }
    let vm = (cluster.namespace.as_str(), name);
    // The server writes the phase, and clients of its schema have to name one.
    let body = json!({ "claimName": args.claim_name, "phase": "" });
    let answer = request::put(cluster, Kind::Vm, vm, "memorydump", &body).await;
    answer.map_err(|fault| fault.of("error dumping vm memory"))?;
    output::say(&format!("Successfully submitted memory dump request of VM {name}"))?;
    if args.output.is_empty() { Ok(()) } else { download(cluster, name, args).await }
}

/// Makes the claim, large enough for the memory of the guest that runs.
async fn create(cluster: &Cluster, name: &str, args: &Args) -> Result<(), Fault> {
    let (namespace, claim) = (&cluster.namespace, &args.claim_name);
    if machine(cluster, name).await?.status.is_some_and(|status| status.memory_dump_request.is_some()) {
        let what = "please remove current memory dump association before creating a new claim for a new memory dump";
        return Err(Fault::new(what).hint(format!("virtctl -n {namespace} memory-dump remove {name}")));
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    let what = format!("cannot create PVC {namespace}/{claim}");
    if claims.get_opt(claim).await.map_err(|error| Fault::api(&what, &error))?.is_some() {
        return Err(Fault::new(format!(
            "PVC {namespace}/{claim} already exists, check if it should be created if not remove create flag"
        )));
    }
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), namespace);
    let vmi = vmis.get(name).await;
    let vmi = vmi.map_err(|error| Fault::api(format!("cannot read VMI {namespace}/{name}"), &error))?;
    let size = needed(cluster, &vmi, args).await?;
    let wanted = serde_json::from_value(manifest(args, size)?).map_err(|error| Fault::new(&what).because(error))?;
    claims.create(&PostParams::default(), &wanted).await.map_err(|error| Fault::api(&what, &error))?;
    output::say(&format!("PVC {namespace}/{claim} created"))
}

fn manifest(args: &Args, size: Amount) -> Result<Value, Fault> {
    let mut spec = json!({
        "accessModes": [mode(args)?], "resources": { "requests": { "storage": size.to_binary() } },
    });
    if !args.storage_class.is_empty() {
        spec["storageClassName"] = json!(args.storage_class);
    }
    let labels = json!({ "cdi.kubevirt.io/applyStorageProfile": "true" });
    Ok(json!({ "metadata": { "name": args.claim_name, "labels": labels }, "spec": spec }))
}

/// How large the claim has to be.
async fn needed(cluster: &Cluster, vmi: &VirtualMachineInstance, args: &Args) -> Result<Amount, Fault> {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "CDIConfig");
    let resource = ApiResource::from_gvk_with_plural(&kind, "cdiconfigs");
    let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    let config = match api.get("config").await {
        Ok(found) => Some(found.data),
        // Who may not read it goes by what is usual.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => None,
        Err(error) => return Err(Fault::api("cannot read CDIConfig config", &error)),
    };
    let class = Some(args.storage_class.as_str()).filter(|class| !class.is_empty());
    let said = config.as_ref().and_then(|config| overhead(config, class));
    if said.is_none() {
        output::say("Using default 5.5% filesystem overhead for pvc size")?;
    }
    let said = said.unwrap_or(DEFAULT_OVERHEAD);
    claim_size(expected_size(vmi), said)
        .ok_or_else(|| Fault::new(format!("CDIConfig: a filesystemOverhead of {said:?} is not a part of one")))
}

async fn machine(cluster: &Cluster, name: &str) -> Result<VirtualMachine, Fault> {
    let api: Api<VirtualMachine> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let what = format!("cannot read VM {}/{name}", cluster.namespace);
    api.get(name).await.map_err(|error| Fault::api(what, &error))
}

async fn download(cluster: &Cluster, name: &str, args: &Args) -> Result<(), Fault> {
    let claim = complete(cluster, name).await?;
    let raw = args.format.as_deref() == Some("raw");
    let export = vmexport::OfClaim {
        name: format!("export-{name}-{claim}"),
        claim,
        output: args.output.clone(),
        raw,
        port_forward: args.port_forward.then(|| args.local_port.clone()),
        retries: RETRIES,
    };
    vmexport::download(cluster, export).await
}

/// The claim of the dump, once the dump is complete.
async fn complete(cluster: &Cluster, name: &str) -> Result<String, Fault> {
    let deadline = Instant::now() + PATIENCE;
    let mut told = String::new();
    loop {
        let held = machine(cluster, name).await?.status.and_then(|status| status.memory_dump_request);
        let Some(held) = held else {
            return Err(Fault::new(format!("VM {name} has no memory dump"))
                .hint(format!("virtctl memory-dump get {name} --claim-name=NAME makes one")));
        };
        match held.phase.as_str() {
            phase::COMPLETED => {
                output::say("Memory dump completed successfully")?;
                return Ok(held.claim_name);
            }
            phase::FAILED => {
                let fault = Fault::new(format!("the memory dump of VM {name} has failed"));
                return Err(fault.because(held.message.unwrap_or_else(|| "nothing is said of why".to_owned())));
            }
            other if Instant::now() >= deadline => {
                return Err(Fault::new(format!("the memory dump of VM {name} is still {other}")));
            }
            other if other != told => {
                let claim = &held.claim_name;
                output::say(&format!("Waiting for memorydump {claim} to complete, current phase: {other}..."))?;
                other.clone_into(&mut told);
            }
            _ => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        <Line as clap::Parser>::parse_from(std::iter::once("virtctl").chain(line.split_whitespace())).args
    }

    #[test]
    fn the_flags_go_together() {
        let check = |line: &str, expect: Result<Function, &str>| match (function(&args(line)), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        };
        check("get vm", Ok(Function::Get));
        check("get vm --create-claim", Err("missing claim name"));
        check("get vm --claim-name=c --create-claim --access-mode=ReadWriteMany", Ok(Function::Get));
        check("get vm --claim-name=c --create-claim --access-mode=ReadOnlyMany", Err("to a readonly pvc"));
        check("get vm --claim-name=c --create-claim --access-mode=Any", Err("invalid access mode"));
        check("download vm", Err("missing outputFile to download the memory dump"));
        check("download vm --output=f --format=raw --port-forward --local-port=8080", Ok(Function::Download));
        check("download vm --output=f --format=zip", Err("acceptable values are gzip/raw"));
        check("remove vm", Ok(Function::Remove));
        check("take vm", Err("invalid action type take"));
    }

    #[test]
    fn a_claim_is_made_as_large_as_it_has_to_be() {
        let made =
            manifest(&args("get vm --claim-name=c --create-claim --storage-class=fast"), "241Mi".parse().unwrap());
        let expect = json!({
            "metadata": { "name": "c", "labels": { "cdi.kubevirt.io/applyStorageProfile": "true" } },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": { "requests": { "storage": "241Mi" } },
            },
        });
        assert_eq!(made.unwrap(), expect);
    }
}
