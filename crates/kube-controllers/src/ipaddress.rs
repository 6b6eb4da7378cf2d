//! IPAddress objects: which Service has which cluster IP, for those who look. The Services are what counts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference};
use kit::controller::{self, During, Result, gone_is_none};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};

use crate::context::Context;

const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const MANAGER: &str = "ipallocator.k8s.io";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (services, addresses) = (ctx.store::<Service>(), ctx.store::<IPAddress>());
    services.on_change({
        let queue = queue.clone();
        move |old, new| {
            let changed = of_service(old.map(AsRef::as_ref)) != of_service(new.map(AsRef::as_ref));
            if let Some(service) = new.or(old).filter(|_| changed) {
                queue.add(Key::of(service.as_ref()));
            }
        }
    });
    addresses.on_change({
        let queue = queue.clone();
        move |old, new| {
            for parent in [old, new].into_iter().flatten().filter_map(|address| parent_of(address)) {
                queue.add(parent);
            }
        }
    });
    services.synced().await;
    addresses.synced().await;
    controller::work(&queue, "ipaddresses", 1, |key| reconcile(&ctx, key)).await;
}

/// The cluster IPs of a Service that is there.
fn of_service(service: Option<&Service>) -> BTreeSet<IpAddr> {
    let spec = service.and_then(|service| service.spec.as_ref());
    spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten()).filter_map(|ip| ip.parse().ok()).collect()
}

/// The Service an address of ours belongs to.
fn parent_of(address: &IPAddress) -> Option<Key> {
    let ours = address.labels().get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let parent = address.spec.as_ref().filter(|_| ours).map(|spec| &spec.parent_ref)?;
    let is_service = parent.resource == "services" && parent.group.as_deref().unwrap_or_default().is_empty();
    is_service.then(|| Key::new(parent.namespace.clone().unwrap_or_default(), parent.name.clone()))
}

fn object(key: &Key, ip: IpAddr) -> IPAddress {
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels = [(FAMILY, family), (MANAGED_BY, MANAGER)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    IPAddress {
        metadata: ObjectMeta { name: Some(ip.to_string()), labels: Some(labels.into()), ..ObjectMeta::default() },
        spec: Some(IPAddressSpec {
            parent_ref: ParentReference {
                group: Some(String::new()),
                resource: "services".into(),
                namespace: Some(key.namespace.clone()),
                name: key.name.clone(),
            },
        }),
    }
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let wanted = of_service(ctx.store::<Service>().get(&key).as_deref());
    let api: Api<IPAddress> = Api::all(ctx.client.clone());
    let there = ctx.store::<IPAddress>().all().into_iter().filter(|address| parent_of(address).as_ref() == Some(&key));
    let mut missing = wanted.clone();
    for address in there {
        let name = address.name_any();
        let ip: Option<IpAddr> = name.parse().ok();
        if !ip.is_some_and(|ip| missing.remove(&ip)) {
            let deleted = api.delete(&name, &DeleteParams::default()).await.map(drop);
            gone_is_none(deleted.during("delete ipaddress", &key))?;
        }
    }
    for ip in missing {
        match api.create(&PostParams::default(), &object(&key, ip)).await {
            // Of a Service that is gone, whose turn comes: this one is looked at again when it does.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let name = ip.to_string();
                let other = ctx.store::<IPAddress>().all().into_iter().find(|address| address.name_any() == name);
                if let Some(parent) = other.and_then(|address| parent_of(&address)).filter(|parent| *parent != key) {
                    gone_is_none(
                        api.delete(&name, &DeleteParams::default()).await.map(drop).during("delete ipaddress", &parent),
                    )?;
                    api.create(&PostParams::default(), &object(&key, ip)).await.during("create ipaddress", &key)?;
                }
            }
            created => drop(created.during("create ipaddress", &key)?),
        }
    }
    Ok(Next::Wait)
}
