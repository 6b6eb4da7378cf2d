//! Making the data volumes that the templates of a virtual machine ask for.

use api::cdi::v1beta1::DataVolume;
use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kit::Chain;
use kit::store::Key;
use kube::{Api, ResourceExt, api::PostParams};

use super::data_volumes::{self, DataVolumes};
use crate::context::{Context, reference};
use crate::error::Error;

/// The data volumes that `vm` names and that are known.
pub(super) fn known(context: &Context, vm: &VirtualMachine) -> DataVolumes {
    let namespace = vm.namespace().unwrap_or_default();
    let found = data_volumes::names(vm).filter_map(|name| {
        let data = context.data_volumes.get(&Key::new(namespace.as_str(), name))?;
        Some((name.to_owned(), data))
    });
    found.collect()
}

/// Makes what is missing, and adds it to `data`. The error is why one could not be made.
pub(super) async fn provision(context: &Context, vm: &VirtualMachine, data: &mut DataVolumes) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let has_claim = |name: &str| context.claims.contains(&Key::new(namespace.as_str(), name));
    for wanted in data_volumes::missing(vm, data, has_claim) {
        let name = wanted.name_any();
        let made = match permitted(context, &wanted).await {
            Ok(()) => create(context, vm, &wanted).await,
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

/// Whether the namespace of the machine may copy what another namespace has: this controller may copy everything, and must
/// not do so for everybody.
async fn permitted(context: &Context, wanted: &DataVolume) -> Result<(), Error> {
    let own = wanted.namespace().unwrap_or_default();
    for source in data_volumes::foreign_sources(wanted) {
        let user = format!("system:serviceaccount:{own}:default");
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.clone()),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{own}"),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(source.clone()),
                    verb: Some("create".to_owned()),
                    group: Some("cdi.kubevirt.io".to_owned()),
                    resource: Some("datavolumes".to_owned()),
                    subresource: Some("source".to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(context.client.clone());
        let asked = api.create(&PostParams::default(), &review).await;
        let asked = asked.map_err(Error::api("ask for the permissions of", "user", "", &user))?;
        if !asked.status.is_some_and(|status| status.allowed) {
            return Err(Error::Forbidden(format!(
                "Authorization failed, message is: User {user} has insufficient permissions in clone source namespace \
                 {source}: it needs to create datavolumes/source of cdi.kubevirt.io there"
            )));
        }
    }
    Ok(())
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
    context.data_volumes.put(&made, Vec::new());
    Ok(made)
}
