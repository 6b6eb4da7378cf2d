//! What a configuration comes to on this cluster. Pure.

use api::cdi::v1beta1::{CDIConfig, CDIConfigStatus, FilesystemOverhead, ImportProxy};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressServiceBackend};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::Value;

use super::PROXY;
use crate::controller::settings;

/// What was found in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Where clients reach the upload proxy.
    pub url: Option<String>,
    /// The certificates it is verified with.
    pub bundle: Option<String>,
    /// The cluster's own proxy.
    pub proxy: Option<ImportProxy>,
}

/// Where clients reach the upload proxy: as told, or by an ingress, a route or a load balancer of its service.
pub fn url(config: &CDIConfig, ingresses: &[Ingress], routes: &[Value], service: Option<&Service>) -> Option<String> {
    if let Some(told) = config.spec.upload_proxy_url_override.clone().filter(|told| !told.is_empty()) {
        return Some(told);
    }
    let by_ingress = ingresses.iter().find_map(|ingress| {
        let spec = ingress.spec.as_ref()?;
        let backend = |service: Option<&IngressServiceBackend>| service.is_some_and(|service| service.name == PROXY);
        let default = backend(spec.default_backend.as_ref().and_then(|one| one.service.as_ref()));
        spec.rules.iter().flatten().find_map(|rule| {
            let paths = rule.http.iter().flat_map(|http| &http.paths);
            let ours = default || paths.into_iter().any(|path| backend(path.backend.service.as_ref()));
            ours.then(|| rule.host.clone()).flatten().filter(|host| !host.is_empty())
        })
    });
    let by_route = || {
        let ours = routes.iter().filter(|route| route["spec"]["to"]["name"] == PROXY);
        let mut admitted = ours.flat_map(|route| route["status"]["ingress"].as_array().into_iter().flatten());
        admitted.find_map(|point| point["host"].as_str().filter(|host| !host.is_empty()).map(str::to_owned))
    };
    by_ingress.or_else(by_route).or_else(|| {
        let points = service?.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?;
        points.iter().find_map(|point| point.hostname.clone().or_else(|| point.ip.clone()))
    })
}

/// What the configuration comes to.
pub fn status(config: &CDIConfig, classes: &[StorageClass], found: Found) -> CDIConfigStatus {
    let spec = &config.spec;
    let wanted = spec.scratch_space_storage_class.as_deref().filter(|name| !name.is_empty());
    let scratch = settings::class(classes, wanted, false).or_else(|| settings::class(classes, None, false));
    let overhead = spec.filesystem_overhead.clone().unwrap_or_default();
    let valid = |text: &String| text.parse::<f64>().is_ok_and(|share| (0.0..1.0).contains(&share));
    let global = overhead.global.filter(valid).unwrap_or_else(|| settings::DEFAULT_OVERHEAD.to_owned());
    let shares = classes.iter().map(ResourceExt::name_any).map(|class| {
        let own = overhead.storage_class.get(&class).filter(|text| valid(text)).unwrap_or(&global).clone();
        (class, own)
    });
    let none = || ImportProxy {
        http_proxy: Some(String::new()),
        https_proxy: Some(String::new()),
        no_proxy: Some(String::new()),
        trusted_ca_proxy: Some(String::new()),
    };
    CDIConfigStatus {
        default_pod_resource_requirements: Some(settings::resources(spec.pod_resource_requirements.as_ref())),
        filesystem_overhead: Some(FilesystemOverhead { storage_class: shares.collect(), global: Some(global.clone()) }),
        image_pull_secrets: spec.image_pull_secrets.clone(),
        import_proxy: Some(spec.import_proxy.clone().or(found.proxy).unwrap_or_else(none)),
        preallocation: Some(spec.preallocation.unwrap_or(false)),
        scratch_space_storage_class: Some(scratch.map(ResourceExt::name_any).unwrap_or_default()),
        upload_proxy_ca: found.bundle,
        upload_proxy_url: found.url,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_comes_to_something_for_every_class() {
        let config = json!({ "metadata": { "name": "config" }, "spec": {
            "filesystemOverhead": { "global": "0.1", "storageClass": { "a": "0.2", "gone": "0.3" } }, "scratchSpaceStorageClass": "gone",
        } });
        let class = |name: &str, default: &str| {
            let annotations = json!({ "storageclass.kubernetes.io/is-default-class": default });
            serde_json::from_value(
                json!({ "metadata": { "name": name, "annotations": annotations }, "provisioner": "p" }),
            )
            .unwrap()
        };
        let classes = [class("a", "false"), class("b", "true")];
        let found = status(&serde_json::from_value(config).unwrap(), &classes, Found::default());
        let overhead = serde_json::to_value(found.filesystem_overhead).unwrap();
        assert_eq!(overhead, json!({ "global": "0.1", "storageClass": { "a": "0.2", "b": "0.1" } }));
        assert_eq!(found.scratch_space_storage_class.as_deref(), Some("b"));
    }

    #[test]
    fn the_proxy_is_where_it_is_said_to_be_or_where_the_cluster_leads() {
        let config = |told: Option<&str>| -> CDIConfig {
            serde_json::from_value(json!({ "spec": { "uploadProxyURLOverride": told } })).unwrap()
        };
        let ingress = json!({ "spec": { "rules": [
            { "host": "other", "http": { "paths": [{ "pathType": "Prefix", "backend": { "service": { "name": "web" } } }] } },
            { "host": "up.example.com", "http": { "paths": [{ "pathType": "Prefix", "backend": { "service": { "name": PROXY } } }] } },
        ] } });
        let ingresses = [serde_json::from_value(ingress).unwrap()];
        let routes = [
            json!({ "spec": { "to": { "name": "web" } }, "status": { "ingress": [{ "host": "web.example.com" }] } }),
            json!({ "spec": { "to": { "name": PROXY } }, "status": { "ingress": [{ "host": "route.example.com" }] } }),
        ];
        assert_eq!(url(&config(Some("told")), &ingresses, &routes, None).as_deref(), Some("told"));
        assert_eq!(url(&config(None), &ingresses, &routes, None).as_deref(), Some("up.example.com"));
        assert_eq!(url(&config(None), &[], &routes, None).as_deref(), Some("route.example.com"));
        let service =
            serde_json::from_value(json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } } }))
                .unwrap();
        assert_eq!(url(&config(None), &[], &[], Some(&service)).as_deref(), Some("192.0.2.1"));
        assert_eq!(url(&config(None), &[], &[], None), None);
    }
}
