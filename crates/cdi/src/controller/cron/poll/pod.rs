//! The pod that asks a cron's registry, in the cron's namespace and as an importer of the image would. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, env, label, path};
use api::cdi::v1beta1::{DataImportCron, DataVolumeSourceRegistry};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::LIMIT;
use crate::controller::names;
use crate::controller::worker::{self, Environment, confined, proxies, variable};

/// The value of [`label::COMPONENT`], and what the container is called.
pub(crate) const POLLER: &str = "cdi-poller";
/// The longest name of a pod whose end the API server makes up is this and that end.
const LONGEST: usize = 57;

/// What a poll has beside its cron.
pub struct Extras<'a> {
    /// ConfigMap in the cron's namespace with the certificates of the proxy.
    pub proxy_certs: Option<&'a str>,
    /// The registry's certificate is not checked, and need not be there.
    pub insecure: bool,
}

/// The pod that asks `registry` for the image at `url` on behalf of `cron`. Its name ends in what the API server makes up: a name that can
/// be told beforehand could be taken.
pub fn render(
    cron: &DataImportCron,
    registry: &DataVolumeSourceRegistry,
    url: &str,
    extras: &Extras<'_>,
    environment: &Environment<'_>,
) -> Result<Pod, serde_json::Error> {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let mut variables =
        vec![variable(env::ENDPOINT, url), variable(env::INSECURE_TLS, if extras.insecure { "true" } else { "false" })];
    if let Some(secret) = given(&registry.secret_ref) {
        variables.extend(worker::login(&secret));
    }
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (map, name, at, directory) in [
        (given(&registry.cert_config_map), "cdi-cert-vol", path::CERTS, env::CERT_DIR),
        (extras.proxy_certs.map(ToOwned::to_owned), "cdi-proxy-cert-vol", path::PROXY_CERTS, env::PROXY_CERT_DIR),
    ] {
        let Some(map) = map else { continue };
        let (volume, mount) = worker::mounted(name, at, json!({ "configMap": { "name": map } }));
        volumes.push(volume);
        mounts.push(mount);
        variables.push(variable(directory, at));
    }
    variables.extend(worker::told(environment.settings));
    variables.extend(proxies(environment.settings));
    let mut security = confined();
    security["readOnlyRootFilesystem"] = json!(true);
    let mut pod = worker::bare(cron, &said(cron), POLLER, environment);
    pod["metadata"]["generateName"] =
        json!(format!("{}-", names::short(&format!("poll-{}", cron.name_any()), LONGEST)));
    pod["metadata"]["labels"][label::POLLER] = json!("");
    pod["metadata"]["labels"][label::DATA_IMPORT_CRON] = json!(names::short(&cron.name_any(), 63));
    pod["spec"]["volumes"] = Value::Array(volumes);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["activeDeadlineSeconds"] = json!(LIMIT.as_secs());
    // It has nothing to finish.
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["containers"] = json!([{
        "name": POLLER,
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "command": [POLLER],
        "env": variables,
        "volumeMounts": mounts,
        "resources": environment.settings.resources,
        // A log holds what the registry answered.
        "terminationMessagePolicy": "File",
        "securityContext": security,
    }]);
    serde_json::from_value(pod)
}

/// What the claims of `cron` say of their importers: networks, account and priority.
fn said(cron: &DataImportCron) -> BTreeMap<String, String> {
    let template = &cron.spec.template;
    let mut said = template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()).unwrap_or_default();
    for (key, value) in [
        (annotation::PRIORITY_CLASS, &template.spec.priority_class_name),
        (annotation::SERVICE_ACCOUNT, &template.spec.service_account_name),
    ] {
        if let Some(value) = value.clone().filter(|value| !value.is_empty()) {
            said.insert(key.to_owned(), value);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::settings::Settings;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn pod(registry: Value, template: Value, config: Value, extras: Extras<'_>) -> Value {
        let mut template = template;
        template["spec"]["source"] = json!({ "registry": registry });
        let cron: DataImportCron = serde_json::from_value(json!({
            "metadata": { "name": "gold", "namespace": "images", "uid": "u1" },
            "spec": { "managedDataSource": "gold", "schedule": "* * * * *", "template": template },
        }))
        .unwrap();
        let settings = Settings::of(Some(&serde_json::from_value(json!({ "spec": config })).unwrap()));
        let placement =
            json!({ "nodeSelector": { "zone": "a" }, "tolerations": [{ "key": "storage", "operator": "Exists" }] });
        let environment =
            Environment { image: "cdi:1", pull_policy: "Always", settings: &settings, placement: &placement };
        let registry: DataVolumeSourceRegistry = serde_json::from_value(registry).unwrap();
        let url = registry.url.clone().unwrap_or_default();
        serde_json::to_value(render(&cron, &registry, &url, &extras, &environment).unwrap()).unwrap()
    }

    const PLAIN: Extras<'static> = Extras { proxy_certs: None, insecure: false };

    #[test]
    fn a_poller_is_a_confined_pod_of_the_crons_namespace_that_ends() {
        let pod = pod(json!({ "url": "docker://r/i:1" }), json!({}), json!({}), PLAIN);
        let metadata = &pod["metadata"];
        assert_eq!((&metadata["namespace"], &metadata["generateName"]), (&json!("images"), &json!("poll-gold-")));
        let owner = json!([{
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "name": "gold", "uid": "u1",
            "controller": true, "blockOwnerDeletion": true,
        }]);
        assert_eq!(metadata["ownerReferences"], owner);
        let labels = json!({
            label::APP: label::APP_VALUE, label::COMPONENT: "cdi-poller", label::MANAGED_BY: "cdi-controller",
            label::K8S_COMPONENT: "storage", label::POLLER: "", label::DATA_IMPORT_CRON: "gold",
        });
        assert_eq!(metadata["labels"], labels);
        let spec = &pod["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!((&spec["automountServiceAccountToken"], &spec["restartPolicy"]), (&json!(false), &json!("Never")));
        assert_eq!(spec["activeDeadlineSeconds"], LIMIT.as_secs());
        assert_eq!((&spec["nodeSelector"]["zone"], &spec["tolerations"][0]["key"]), (&json!("a"), &json!("storage")));
        let container = &spec["containers"][0];
        let security = &container["securityContext"];
        assert_eq!(
            (&security["allowPrivilegeEscalation"], &security["readOnlyRootFilesystem"], &security["capabilities"]),
            (&json!(false), &json!(true), &json!({ "drop": ["ALL"] }))
        );
        assert_eq!(container["terminationMessagePolicy"], "File", "a log holds what a registry says");
        let resources =
            json!({ "limits": { "cpu": "750m", "memory": "600M" }, "requests": { "cpu": "100m", "memory": "60M" } });
        assert_eq!(container["resources"], resources);
        assert_eq!(
            (&container["image"], &container["imagePullPolicy"], &container["command"]),
            (&json!("cdi:1"), &json!("Always"), &json!(["cdi-poller"]))
        );
    }

    #[test]
    fn a_poller_asks_as_an_importer_would() {
        let registry = json!({ "url": "docker://r/i:1", "secretRef": "login", "certConfigMap": "authorities", "pullMethod": "node" });
        let template = json!({
            "metadata": { "annotations": { "k8s.v1.cni.cncf.io/networks": "storage", "mine": "1" } },
            "spec": { "serviceAccountName": "puller", "priorityClassName": "low" },
        });
        let config = json!({
            "importProxy": { "HTTPSProxy": "http://p" }, "imagePullSecrets": [{ "name": "pull" }],
            "tlsSecurityProfile": { "type": "Modern", "modern": {} },
        });
        let pod = pod(registry, template, config, Extras { proxy_certs: Some("proxy"), insecure: true });
        let spec = &pod["spec"];
        let variables = spec["containers"][0]["env"].as_array().unwrap();
        for (name, value) in [
            (env::ENDPOINT, "docker://r/i:1"),
            (env::INSECURE_TLS, "true"),
            (env::CERT_DIR, "/certs"),
            (env::PROXY_CERT_DIR, "/proxycerts/"),
            (env::HTTPS_PROXY, "http://p"),
            (env::TLS_MIN_VERSION, "VersionTLS13"),
        ] {
            assert!(variables.contains(&variable(name, value)), "{name}: {variables:?}");
        }
        // Passwords are the kubelet's to read: neither this controller nor the pod's spec has them.
        for (name, key) in [(env::ACCESS_KEY, "accessKeyId"), (env::SECRET_KEY, "secretKey")] {
            let from = json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": "login", "key": key } } });
            assert!(variables.contains(&from), "{variables:?}");
        }
        let maps: Vec<_> = spec["volumes"].as_array().unwrap().iter().map(|one| &one["configMap"]["name"]).collect();
        assert_eq!(maps, ["authorities", "proxy"]);
        assert_eq!(
            (&spec["serviceAccountName"], &spec["priorityClassName"], &spec["imagePullSecrets"][0]["name"]),
            (&json!("puller"), &json!("low"), &json!("pull"))
        );
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(
            (&annotations["k8s.v1.cni.cncf.io/networks"], &annotations["mine"]),
            (&json!("storage"), &Value::Null)
        );
    }
}
