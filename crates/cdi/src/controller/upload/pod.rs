//! The pod and the Service that take an upload in. Pure.

use api::cdi::constants::{annotation, env, label, path};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::controller::context::annotation_of;
use crate::controller::labels::labels;
use crate::controller::names;
use crate::controller::storage::requested;
use crate::controller::worker::{self, Environment, confined, extend, is_block, variable};
use crate::operator::certificates::UPLOAD_CLIENT;

/// Where the server's certificate is mounted.
const CERTIFICATES: &str = "/etc/cdi-upload";

/// Name of the pod, the Service and the certificate of `claim`.
pub fn name(claim: &PersistentVolumeClaim) -> String {
    names::service("cdi-upload", &claim.name_any())
}

/// The name in the certificate of the pod that copies into `claim`: no other server takes it.
pub fn cloner(claim: &PersistentVolumeClaim) -> String {
    format!("copy-to-{}", claim.uid().unwrap_or_default())
}

/// The names that clients know the server by.
pub fn dns(claim: &PersistentVolumeClaim) -> Vec<String> {
    let (name, namespace) = (name(claim), claim.namespace().unwrap_or_default());
    vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}"), name]
}

/// The Service of the upload server of `claim`.
pub fn service(claim: &PersistentVolumeClaim) -> Result<Service, serde_json::Error> {
    let mut labels = labels(label::UPLOAD_SERVER);
    labels.insert(label::UPLOAD_TARGET.to_owned(), claim.uid().unwrap_or_default());
    serde_json::from_value(json!({
        "metadata": {
            "name": name(claim), "namespace": claim.namespace(), "labels": labels, "ownerReferences": worker::owned_by(claim),
        },
        "spec": {
            "ports": [{ "name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443 }],
            "selector": { label::SERVICE: name(claim) },
        },
    }))
}

/// The upload server of `claim`, whose certificate is in the secret of its name. It ends when no upload has begun by `deadline`.
pub fn render(
    claim: &PersistentVolumeClaim,
    deadline: Timestamp,
    environment: &Environment<'_>,
) -> Result<Pod, serde_json::Error> {
    let spec = claim.spec.clone().unwrap_or_default();
    let settings = environment.settings;
    let size = requested(&spec).map_or_else(String::new, |bytes| bytes.to_string());
    let (overhead, _) = settings.overhead(spec.storage_class_name.as_deref());
    let destination = if is_block(claim) { path::BLOCK.to_owned() } else { format!("{}/disk.img", path::DATA) };
    let preallocation = annotation_of(claim, annotation::PREALLOCATION_REQUESTED).unwrap_or("false");
    let file = |name: &str| format!("{CERTIFICATES}/{name}");
    let mut container = json!({
        "name": label::UPLOAD_SERVER,
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "command": ["cdi-uploadserver"],
        "env": [
            variable("TLS_CERT_FILE", &file("tls.crt")),
            variable("TLS_KEY_FILE", &file("tls.key")),
            variable("CLIENT_CERT_FILE", &file("clients.crt")),
            variable("CLIENT_NAME", UPLOAD_CLIENT),
            variable("CLONER_NAME", &cloner(claim)),
            variable("DESTINATION", &destination),
            variable("LISTEN_PORT", "8443"),
            variable("DEADLINE", &deadline.to_string()),
            variable(env::UPLOAD_IMAGE_SIZE, &size),
            variable(env::FILESYSTEM_OVERHEAD, if is_block(claim) { "0" } else { &overhead }),
            variable(env::PREALLOCATION, preallocation),
            variable(env::OWNER_UID, &worker::owner(claim)),
        ],
        "ports": [{ "name": "https", "containerPort": 8443, "protocol": "TCP" }],
        "readinessProbe": {
            "httpGet": { "path": "/healthz", "port": 8080, "scheme": "HTTP" },
            "initialDelaySeconds": 0, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3,
        },
        "resources": settings.resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": confined(),
    });
    extend(&mut container["env"], worker::told(settings));
    worker::attach(&mut container, claim);
    extend(
        &mut container["volumeMounts"],
        vec![json!({ "name": "certificates", "mountPath": CERTIFICATES, "readOnly": true })],
    );
    let name = name(claim);
    let mut pod = worker::shell(claim, &name, label::UPLOAD_SERVER, environment);
    pod["metadata"]["labels"][label::SERVICE] = json!(name);
    pod["metadata"]["labels"][label::UPLOAD_TARGET] = json!(claim.uid());
    pod["spec"]["containers"] = json!([container]);
    let secret: Value = json!({ "name": "certificates", "secret": { "secretName": name } });
    extend(&mut pod["spec"]["volumes"], vec![secret]);
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    serde_json::from_value(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::settings::Settings;

    #[test]
    fn a_server_is_found_by_the_claims_name() {
        let claim = json!({ "metadata": { "name": "prime-u", "namespace": "ns", "uid": "u" }, "spec": { "volumeMode": "Block" } });
        let claim = serde_json::from_value(claim).unwrap();
        let settings = Settings::default();
        let environment = Environment { image: "i", pull_policy: "Always", settings: &settings, placement: &json!({}) };
        let pod = serde_json::to_value(render(&claim, Timestamp::UNIX_EPOCH, &environment).unwrap()).unwrap();
        let service = serde_json::to_value(service(&claim).unwrap()).unwrap();
        assert_eq!(service["spec"]["selector"][label::SERVICE], pod["metadata"]["labels"][label::SERVICE]);
        assert_eq!(dns(&claim)[0], "cdi-upload-prime-u.ns.svc");
        let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        assert!(variables.contains(&variable("DESTINATION", "/dev/cdi-block-volume")));
        assert!(variables.contains(&variable("CLONER_NAME", "copy-to-u")));
    }
}
