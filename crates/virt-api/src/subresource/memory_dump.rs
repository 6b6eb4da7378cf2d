//! memorydump, removememorydump: a request to dump a guest's memory onto a claim, judged and written into the machine's status,
//! from where its controller carries it out.

use api::kubevirt::constants::phase;
use api::kubevirt::memory_dump::{self, DEFAULT_OVERHEAD, request};
use api::kubevirt::v1::{VirtualMachine, VirtualMachineMemoryDumpRequest as Request};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use meta::quantity::Amount;
use serde_json::{Value, json};

use super::{Context, Object, options};
use crate::cluster;
use crate::status::{self, Refusal, done};
use crate::validate::is_volume_name;

/// How often a decision is taken again when the machine changes meanwhile.
const ATTEMPTS: u32 = 5;

pub(super) async fn serve(context: &Context, object: &Object, dump: bool, body: &Bytes) -> Result<Response, Refusal> {
    if dump && body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::bad_request("Request with no body"));
    }
    let given: Request = if dump { options::read(body)? } else { Request::default() };
    let mut attempt = 0;
    loop {
        attempt += 1;
        let vm = cluster::vm(&context.client, &object.namespace, &object.name).await?;
        let wanted = if dump { asked(context, &vm, &given).await? } else { removed(&vm)? };
        // What an earlier dump left is not this one's.
        let patch = json!({ "status": { "memoryDumpRequest": {
            "claimName": wanted.claim_name, "phase": wanted.phase, "remove": wanted.remove,
            "startTimestamp": null, "endTimestamp": null, "fileName": null, "message": null,
        } } });
        match cluster::patch_vm_status(&context.client, &vm, patch, false).await {
            Ok(()) => break,
            Err(refusal) if refusal.code == StatusCode::CONFLICT && attempt < ATTEMPTS => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let mut response = done();
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// The request that is held, and its claim.
fn held(vm: &VirtualMachine) -> Option<&Request> {
    vm.status.as_ref()?.memory_dump_request.as_deref()
}

fn refuse(vm: &VirtualMachine, why: &str) -> Refusal {
    status::conflict("virtualmachine", vm.metadata.name.as_deref().unwrap_or_default(), why)
}

/// The claim that is meant, if the machine itself allows it.
fn claim_of(vm: &VirtualMachine, given: &Request) -> Result<String, Refusal> {
    let named = given.claim_name.as_str();
    let claim = match (held(vm), named) {
        (None, "") => return Err(Refusal::bad_request("Memory dump requires claim name to be set")),
        (Some(held), "") => held.claim_name.clone(),
        (Some(held), named) if held.claim_name != named => {
            let other = &held.claim_name;
            let why = format!(
                "can't request memory dump for pvc [{named}] while pvc [{other}] is still associated as the memory dump pvc"
            );
            return Err(refuse(vm, &why));
        }
        (_, named) => named.to_owned(),
    };
    if !is_volume_name(&claim) {
        return Err(Refusal::bad_request(format!(
            "claimName {claim:?} cannot be the name of a volume, as which the machine has it: use a claim whose name has at \
             most 63 lower-case letters, digits and '-'"
        )));
    }
    let volumes = vm.spec.template.spec.as_ref().map(|spec| spec.volumes.as_slice()).unwrap_or_default();
    let disk = volumes.iter().find(|volume| {
        let own = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str());
        let data = volume.data_volume.as_ref().map(|source| source.name.as_str());
        volume.memory_dump.is_none() && (volume.name == claim || own.or(data) == Some(claim.as_str()))
    });
    if let Some(disk) = disk {
        let why = format!("pvc [{claim}] is volume [{}] of the virtual machine: dump its memory to another", disk.name);
        return Err(refuse(vm, &why));
    }
    Ok(claim)
}

/// The request that is written, if one may be now.
fn requested(vm: &VirtualMachine, claim: String) -> Result<Request, Refusal> {
    match held(vm).map(|held| held.phase.as_str()) {
        Some(request::DISSOCIATING) => {
            let why = format!("can't dump memory for pvc [{claim}] a remove memory dump request is in progress");
            Err(refuse(vm, &why))
        }
        None | Some(request::COMPLETED | request::FAILED) => {
            Ok(Request { claim_name: claim, phase: request::ASSOCIATING.to_owned(), ..Request::default() })
        }
        Some(_) => Err(refuse(vm, &format!("memory dump request for pvc [{claim}] already in progress"))),
    }
}

fn removed(vm: &VirtualMachine) -> Result<Request, Refusal> {
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let Some(held) = held(vm) else {
        let why = format!("can't remove memory dump association for vm {name}, no association found");
        return Err(refuse(vm, &why));
    };
    let claim = held.claim_name.clone();
    if held.remove == Some(true) {
        return Err(refuse(vm, &format!("memory dump remove request for pvc [{claim}] already exists")));
    }
    let phase = request::DISSOCIATING.to_owned();
    Ok(Request { claim_name: claim, phase, remove: Some(true), ..Request::default() })
}

async fn asked(context: &Context, vm: &VirtualMachine, given: &Request) -> Result<Request, Refusal> {
    let claim = claim_of(vm, given)?;
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let vmi = cluster::vmi(&context.client, namespace, name).await?;
    if vmi.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase::RUNNING) {
        return Err(status::conflict("virtualmachineinstance", name, "VMI is not running"));
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let Some(found) = claims.get_opt(&claim).await? else {
        return Err(Refusal::not_found(format!("persistentvolumeclaim.kubevirt.io \"{claim}\" not found")));
    };
    let config = cdi_config(context).await?;
    fits(&found, memory_dump::expected_size(&vmi), config.as_ref())
        .map_err(|why| status::conflict("persistentvolumeclaim", &claim, &why))?;
    requested(vm, claim)
}

/// Why a dump of `expected` bytes does not go onto the claim.
fn fits(claim: &PersistentVolumeClaim, expected: Amount, config: Option<&Value>) -> Result<(), String> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err("pvc should be filesystem pvc".to_owned());
    }
    let modes = spec.access_modes.unwrap_or_default();
    if !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany") {
        return Err("pvc access mode can't be read only".to_owned());
    }
    let said = config.and_then(|config| memory_dump::overhead(config, spec.storage_class_name.as_deref()));
    let overhead = said.unwrap_or(DEFAULT_OVERHEAD);
    let needed = memory_dump::claim_size(expected, overhead)
        .ok_or_else(|| format!("CDIConfig: a filesystemOverhead of {overhead:?} is not a part of one: correct it"))?;
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let size = requests.get("storage").and_then(|size| Amount::try_from(size).ok()).unwrap_or_default();
    // As clients show it: in whole thousands of bytes.
    let size = Amount::from_bytes(size.bytes().div_ceil(1000).saturating_mul(1000));
    if size < needed {
        return Err(format!("pvc size [{}] should be bigger then [{needed}]", size.to_decimal().0));
    }
    Ok(())
}

/// CDI's configuration, where there is CDI.
async fn cdi_config(context: &Context) -> Result<Option<Value>, Refusal> {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "CDIConfig");
    let resource = ApiResource::from_gvk_with_plural(&kind, "cdiconfigs");
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    match api.get("config").await {
        Ok(found) => Ok(Some(found.data)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(request: &Value) -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": { "name": "vm", "namespace": "ns" },
            "spec": { "template": { "spec": { "domain": { "devices": {} }, "volumes": [
                { "name": "root", "persistentVolumeClaim": { "claimName": "disk" } },
                { "name": "dump", "memoryDump": { "claimName": "dump" } },
            ] } } },
            "status": { "memoryDumpRequest": request },
        }))
        .unwrap()
    }

    fn said<T>(outcome: Result<T, Refusal>) -> Result<T, String> {
        let prefix = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": ";
        outcome.map_err(|refusal| refusal.message.strip_prefix(prefix).unwrap_or(&refusal.message).to_owned())
    }

    #[test]
    fn one_claim_at_a_time_that_is_no_disk() {
        let check = |held: Value, named: &str, expect: Result<&str, &str>| {
            let given = Request { claim_name: named.to_owned(), ..Request::default() };
            let found = said(claim_of(&vm(&held), &given));
            assert_eq!(found, expect.map(str::to_owned).map_err(str::to_owned));
        };
        let held = || json!({ "claimName": "dump", "phase": "Completed" });
        check(Value::Null, "", Err("Memory dump requires claim name to be set"));
        check(Value::Null, "dump", Ok("dump"));
        check(held(), "", Ok("dump"));
        check(held(), "dump", Ok("dump"));
        let other =
            "can't request memory dump for pvc [other] while pvc [dump] is still associated as the memory dump pvc";
        check(held(), "other", Err(other));
        let disk = "pvc [disk] is volume [root] of the virtual machine: dump its memory to another";
        check(Value::Null, "disk", Err(disk));
        assert!(
            said(claim_of(&vm(&Value::Null), &Request { claim_name: "a.b".into(), ..Request::default() })).is_err()
        );
    }

    #[test]
    fn one_request_at_a_time() {
        let check = |held: Value, dump: Result<&str, &str>, remove: Result<&str, &str>| {
            let vm = vm(&held);
            let phase = |outcome| said(outcome).map(|request: Request| request.phase);
            assert_eq!(phase(requested(&vm, "dump".into())), dump.map(str::to_owned).map_err(str::to_owned));
            assert_eq!(phase(removed(&vm)), remove.map(str::to_owned).map_err(str::to_owned));
        };
        let held = |phase: &str| json!({ "claimName": "dump", "phase": phase });
        let (new, gone) = (Ok("Associating"), Ok("Dissociating"));
        check(Value::Null, new, Err("can't remove memory dump association for vm vm, no association found"));
        check(held("Completed"), new, gone);
        check(held("Failed"), new, gone);
        let busy = Err("memory dump request for pvc [dump] already in progress");
        check(held("InProgress"), busy, gone);
        check(held("Unmounting"), busy, gone);
        let mut leaving = held("Dissociating");
        leaving["remove"] = json!(true);
        let why = "can't dump memory for pvc [dump] a remove memory dump request is in progress";
        check(leaving, Err(why), Err("memory dump remove request for pvc [dump] already exists"));
    }

    #[test]
    fn the_claim_has_a_file_system_and_room() {
        let check = |mode: &str, access: &str, size: &str, config: Option<Value>, expect: &str| {
            let claim = json!({ "spec": {
                "volumeMode": mode, "accessModes": [access], "storageClassName": "fast",
                "resources": { "requests": { "storage": size } },
            } });
            let expected = "228Mi".parse().unwrap();
            let found = fits(&serde_json::from_value(claim).unwrap(), expected, config.as_ref());
            assert_eq!(found.err().unwrap_or_default(), expect);
        };
        let config = |overhead: &str| Some(json!({ "status": { "filesystemOverhead": { "global": overhead } } }));
        check("Filesystem", "ReadWriteOnce", "241Mi", None, "");
        check("Filesystem", "ReadWriteOnce", "228Mi", config("0"), "");
        check("Block", "ReadWriteOnce", "1Gi", None, "pvc should be filesystem pvc");
        check("Filesystem", "ReadOnlyMany", "1Gi", None, "pvc access mode can't be read only");
        check("Filesystem", "ReadWriteOnce", "100Mi", None, "pvc size [104858k] should be bigger then [241Mi]");
        let odd = "CDIConfig: a filesystemOverhead of \"much\" is not a part of one: correct it";
        check("Filesystem", "ReadWriteOnce", "1Gi", config("much"), odd);
    }
}
