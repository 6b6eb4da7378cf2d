//! Making the data volumes that the templates of a virtual machine ask for.

use api::cdi::constants::label;
use api::cdi::v1beta1::DataVolume;
use api::kubevirt::v1::VirtualMachine;
use kit::Chain;
use kit::store::Key;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use origin::{follow, leave};

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::data_volumes::{self, DataVolumes};

/// The data volumes that `vm` names and that are known.
pub(super) fn known(context: &Context, vm: &VirtualMachine) -> DataVolumes {
    let namespace = vm.namespace().unwrap_or_default();
    let found = data_volumes::names(vm).filter_map(|name| {
        let data = context.stores.data_volumes.get(&Key::new(namespace.as_str(), name))?;
        Some((name.to_owned(), data))
    });
    found.collect()
}

/// Makes what is missing, and adds it to `data`. The error is why one could not be made.
pub(super) async fn provision(context: &Context, vm: &VirtualMachine, data: &mut DataVolumes) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let has_claim = |name: &str| context.stores.claims.contains(&Key::new(namespace.as_str(), name));
    for wanted in data_volumes::missing(vm, data, has_claim) {
        let name = wanted.name_any();
        let made = match permitted(context, vm, wanted).await {
            Ok(wanted) => create(context, vm, &wanted).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => {
                data.insert(name, made);
            }
            Err(error) => {
                let message = format!("Failed to create DataVolume {name}: {}", Chain(&error));
                context.recorder.warning(&reference(vm), "FailedDataVolumeCreate", message);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// `wanted` with what it copies spelled out, once it is known that the machine may have that: this controller may copy everything, and must
/// not do so for everybody. What virt-api alone can have noted on the machine was allowed to a user who wrote it; for anything else, such as a DataSource
/// that has become another since, the machine's account is asked.
pub(crate) async fn permitted(
    context: &Context,
    vm: &VirtualMachine,
    mut wanted: DataVolume,
) -> Result<DataVolume, Error> {
    let own = wanted.namespace().unwrap_or_default();
    let name = wanted.name_any();
    let found = follow::live(&context.client, &wanted.spec, &own).await;
    let found = found.map_err(Error::api("follow the source of", "datavolume", &own, &name))?;
    let Some(end) = found.transpose().map_err(|dead| Error::NoSource(dead.to_string()))? else { return Ok(wanted) };
    if !(leave::is_noted(vm, &end.source) && witnessed(context, vm).await?) {
        let user = leave::account_of(vm, &own);
        let asked = leave::refusal(&context.client, &user, &end.source, &own).await;
        if let Some(why) = asked.map_err(Error::api("ask for the permissions of", "user", "", &user.username))? {
            return Err(Error::Forbidden(format!(
                "Authorization failed, message is: {why}: it needs to create datavolumes/source of cdi.kubevirt.io there"
            )));
        }
    }
    let of_machine = |name: &str| name.starts_with(label::INSTANCETYPE_PREFIX) || name == label::DYNAMIC_CREDENTIALS;
    if !wanted.labels().keys().any(|name| of_machine(name)) {
        wanted.labels_mut().extend(end.labels.into_iter().filter(|(name, _)| of_machine(name)));
    }
    wanted.spec.source = Some(Box::new(end.source.spelled()));
    wanted.spec.source_ref = None;
    Ok(wanted)
}

async fn witnessed(context: &Context, vm: &VirtualMachine) -> Result<bool, Error> {
    let asked = leave::is_witnessed(&context.client, vm).await;
    asked.map_err(Error::api("read", "mutatingwebhookconfiguration", "", leave::WEBHOOKS))
}

async fn create(context: &Context, vm: &VirtualMachine, wanted: &DataVolume) -> Result<DataVolume, Error> {
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<DataVolume> = Api::namespaced(context.client.clone(), &namespace);
    let mut made = match api.create(&PostParams::default(), wanted).await {
        Ok(made) => {
            let message = format!("Created DataVolume {name}");
            context.recorder.normal(&reference(vm), "SuccessfulDataVolumeCreate", message);
            made
        }
        // Made by an earlier look whose result the watch has not brought yet, or by somebody else: it is used as it is.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            api.get(&name).await.map_err(Error::api("read", "datavolume", &namespace, &name))?
        }
        Err(error) => return Err(Error::api("create", "datavolume", &namespace, &name)(error)),
    };
    made.metadata.managed_fields = None;
    context.stores.data_volumes.put(&made, Vec::new());
    Ok(made)
}
