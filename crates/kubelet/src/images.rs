//! Images: there before a container starts, by its pull policy and the pod's pull secrets.

use std::collections::HashMap;
use std::sync::PoisonError;

use base64::Engine;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Secret};
use kube::Api;
use rpc::cri;
use serde::Deserialize;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::sandbox::pod_labels;

/// What a container needs to know of its image.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageInfo {
    pub(crate) id: String,
    pub(crate) uid: Option<i64>,
    pub(crate) user: String,
}

/// Why a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Makes sure that the image of `container` is on the node.
pub(crate) async fn ensure(
    context: &Context,
    pod: &Pod,
    container: &Container,
    about: &ObjectReference,
) -> Result<ImageInfo, Waiting> {
    let image = container.image.as_deref().unwrap_or_default();
    let policy = container.image_pull_policy.as_deref().unwrap_or_else(|| default_policy(image));
    if !is_reference(image) {
        let message = format!(
            "Failed to apply default image tag \"{image}\": couldn't parse image name: invalid reference format"
        );
        context.events.warning(about, "InspectFailed", message.clone());
        return Err(Waiting { reason: "InvalidImageName".into(), message });
    }
    let lock = {
        let mut pulling = context.images.pulling.lock().unwrap_or_else(PoisonError::into_inner);
        pulling.entry(image.to_owned()).or_default().clone()
    };
    let present = |found: Option<ImageInfo>| found.filter(|_| policy != "Always");
    let inspect =
        || async { info(&context.runtime, image).await.map_err(|error| waiting("ImageInspectError", &error)) };
    let found = inspect().await?;
    if found.is_none() && policy == "Never" {
        let message = format!("Container image \"{image}\" is not present with pull policy of Never");
        context.events.warning(about, "ErrImageNeverPull", message.clone());
        return Err(Waiting { reason: "ErrImageNeverPull".into(), message });
    }
    if let Some(found) = present(found) {
        context.events.normal(about, "Pulled", format!("Container image \"{image}\" already present on machine"));
        return Ok(found);
    }
    let asked = tokio::time::Instant::now();
    let _turn = lock.lock().await;
    if let Some(found) = present(inspect().await?) {
        context.events.normal(about, "Pulled", format!("Container image \"{image}\" already present on machine"));
        return Ok(found);
    }
    context.events.normal(about, "Pulling", format!("Pulling image \"{image}\""));
    let began = tokio::time::Instant::now();
    match pull(context, pod, image, about).await {
        Ok(()) => {}
        Err(error) => {
            let message = error.user_message();
            context.events.warning(about, "Failed", format!("Failed to pull image \"{image}\": {message}"));
            context.events.warning(about, "Failed", "Error: ErrImagePull");
            return Err(Waiting { reason: "ErrImagePull".into(), message });
        }
    }
    let Some(found) = inspect().await? else {
        return Err(Waiting {
            reason: "ErrImagePull".into(),
            message: format!("image \"{image}\" vanished after its pull"),
        });
    };
    context.events.normal(
        about,
        "Pulled",
        format!(
            "Successfully pulled image \"{image}\" in {}ms ({}ms including waiting)",
            began.elapsed().as_millis(),
            asked.elapsed().as_millis()
        ),
    );
    Ok(found)
}

fn waiting(reason: &str, error: &Error) -> Waiting {
    Waiting { reason: reason.to_owned(), message: error.user_message() }
}

async fn info(runtime: &Runtime, image: &str) -> Result<Option<ImageInfo>> {
    let spec = cri::ImageSpec { image: image.to_owned(), ..Default::default() };
    let request = cri::ImageStatusRequest { image: Some(spec), verbose: false };
    let reply = runtime.images().image_status(request).await.map_err(Error::runtime("image status"))?;
    Ok(reply.into_inner().image.map(|image| ImageInfo {
        id: image.id,
        uid: image.uid.map(|uid| uid.value),
        user: image.username,
    }))
}

async fn pull(context: &Context, pod: &Pod, image: &str, about: &ObjectReference) -> Result<()> {
    let mut auths = secrets(context, pod, image, about).await?.into_iter();
    // Without any secret one anonymous attempt; with secrets each in turn.
    let mut auth = auths.next();
    loop {
        let spec = cri::ImageSpec { image: image.to_owned(), ..Default::default() };
        let sandbox_config =
            Some(cri::PodSandboxConfig { labels: HashMap::from(pod_labels(pod)), ..Default::default() });
        let request = cri::PullImageRequest { image: Some(spec), auth: auth.take(), sandbox_config };
        match context.runtime.images().pull_image(request).await.map_err(Error::runtime("pull image")) {
            Ok(_) => return Ok(()),
            Err(error) => match auths.next() {
                Some(next) => auth = Some(next),
                None => return Err(error),
            },
        }
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: HashMap<String, Login>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
}

async fn secrets(context: &Context, pod: &Pod, image: &str, about: &ObjectReference) -> Result<Vec<cri::AuthConfig>> {
    let names = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for reference in names.into_iter().flatten() {
        let secret =
            api.get_opt(&reference.name).await.map_err(Error::api(format!("get secret {}", reference.name)))?;
        if secret.is_none() {
            missing.push(reference.name.as_str());
        }
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let logins = if let Some(text) = data.get(".dockerconfigjson") {
            serde_json::from_slice::<DockerConfig>(&text.0).map(|config| config.auths).unwrap_or_default()
        } else if let Some(text) = data.get(".dockercfg") {
            serde_json::from_slice(&text.0).unwrap_or_default()
        } else {
            continue;
        };
        found.extend(logins.into_iter().filter(|(server, _)| serves(server, image)).map(|(_, login)| auth(login)));
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let message = format!(
            "Unable to retrieve some image pull secrets ({missing}); attempting to pull the image may not succeed."
        );
        context.events.warning(about, "FailedToRetrieveImagePullSecret", message);
    }
    Ok(found)
}

fn auth(login: Login) -> cri::AuthConfig {
    if !login.username.is_empty() {
        return cri::AuthConfig { username: login.username, password: login.password, ..Default::default() };
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(&login.auth).unwrap_or_default();
    let text = String::from_utf8_lossy(&decoded).into_owned();
    let (username, password) = text.split_once(':').unwrap_or((&text, ""));
    cri::AuthConfig { username: username.to_owned(), password: password.to_owned(), ..Default::default() }
}

/// True when the credentials of `server` (a host, or a URL, or with a path prefix) are for `image`.
fn serves(server: &str, image: &str) -> bool {
    let server = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let server = server.trim_end_matches("/v1").trim_end_matches("/v2");
    let (host, _) = image.split_once('/').unwrap_or(("", image));
    let qualified = host.contains(['.', ':']) || host == "localhost";
    let image = if qualified { image.to_owned() } else { format!("docker.io/{image}") };
    let server = if server == "index.docker.io" { "docker.io" } else { server };
    image.strip_prefix(server).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a registry could know such a name: `[host[:port]/]path[:tag][@digest]`.
fn is_reference(image: &str) -> bool {
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[last..].rfind(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good_tag = |tag: &str| {
        (1..=128).contains(&tag.len()) && tag.starts_with(word) && tag.chars().all(|c| word(c) || c == '.' || c == '-')
    };
    let good_digest = |digest: &str| {
        let hex = digest.split_once(':').map(|(_, hex)| hex);
        hex.is_some_and(|hex| hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let mut parts: Vec<&str> = name.split('/').collect();
    if let Some(host) = parts.first().filter(|_| parts.len() > 1)
        && (host.contains(['.', ':']) || *host == "localhost" || host.chars().any(|c| c.is_ascii_uppercase()))
    {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
        if !host.chars().all(legal) {
            return false;
        }
        parts.remove(0);
    }
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good_part = |part: &&str| {
        part.starts_with(lower)
            && part.ends_with(lower)
            && part.chars().all(|c| lower(c) || matches!(c, '.' | '_' | '-'))
    };
    tag.is_none_or(good_tag) && digest.is_none_or(good_digest) && parts.iter().all(good_part)
}

/// `Always` for `latest`, else `IfNotPresent`.
fn default_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    if image.contains('@') {
        return "IfNotPresent";
    }
    match name.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        for (image, expect) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1", "IfNotPresent"),
            ("host:5000/busybox", "Always"),
            ("host:5000/busybox:1", "IfNotPresent"),
            ("busybox@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(default_policy(image), expect, "{image}");
        }
    }

    #[test]
    fn references() {
        let digest = "sha256:49f711bdf9a7a43ff34b53db381f67b4bb0ac5a5030070674471ae46ea76fa65";
        for good in
            ["busybox", "a/b/c:1.2-x", "127.0.0.1:1/no/such:v1", "ferrovirt.local/x__y:v0.1.0", "localhost/a", "Host/a"]
        {
            assert!(is_reference(good), "{good}");
            assert!(is_reference(&format!("{good}@{digest}")), "{good}");
        }
        for bad in ["", "Not A Name", "Upper", "a/B", "a:", "a:b/c:", "a//b", "a@sha256:00", "-a", "a:.b"] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    #[test]
    fn credentials_match_hosts() {
        assert!(serves("https://index.docker.io/v1/", "busybox"));
        assert!(serves("host:5000", "host:5000/a/b:1"));
        assert!(!serves("host", "hostile.example/a"));
    }
}
