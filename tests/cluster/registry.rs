//! The product's images in a registry, and a pod made of them from there.

use std::process::Command;

use anyhow::{Result, ensure};
use e2e::servers::registry::Registry;
use e2e::{Namespace, root};
use serde_json::json;

use crate::Test;
use crate::pods::{container, once, pod, special, with};

pub(crate) const TESTS: &[Test] = &[("images_are_pushed_and_pulled", images_are_pushed_and_pulled)];

fn images_are_pushed_and_pulled() -> Result<()> {
    let space = Namespace::new("registry")?;
    let registry = Registry::start()?;
    let push = |place: &str| {
        Command::new(root().join("bin/ferrovirt")).args(["images", "push", place, "--plain-http"]).output()
    };
    let place = format!("127.0.0.1:{}/team", registry.port);
    let pushed = push(&place)?;
    ensure!(pushed.status.success(), "{pushed:?}");
    let said = String::from_utf8_lossy(&pushed.stdout).into_owned();
    for image in ["component", "launcher", "tekton-tasks"] {
        ensure!(said.contains(&format!("pushing {place}/{image}:v0.1.0\n")), "{said}");
    }
    let all = said.lines().filter(|line| line.starts_with("pushing ")).count();
    ensure!(said.contains(&format!("pushed {all} images")), "{said}");
    let secure = Command::new(root().join("bin/ferrovirt")).args(["images", "push", &place]).output()?;
    let refused = String::from_utf8_lossy(&secure.stderr).into_owned();
    ensure!(
        refused.contains("the registry does not speak TLS\nhint: ") && refused.contains("--plain-http"),
        "{refused}"
    );
    let again = push(&place)?;
    ensure!(again.status.success(), "{again:?}");

    // The node speaks HTTPS to registries unless it is told otherwise, by a file as containerd documents it.
    let host = registry.host();
    let script = format!("mkdir -p '/certs/{host}' && echo '[host.\"http://{host}\"]' > '/certs/{host}/hosts.toml'");
    let volume = json!({"volumes": [{"name": "certs", "hostPath": {"path": "/etc/containerd/certs.d", "type": "DirectoryOrCreate"}}]});
    let mount = json!({"volumeMounts": [{"name": "certs", "mountPath": "/certs"}]});
    once(&space, &special("tell", &script, &mount, &volume))?;
    let image = format!("{host}/team/component:v0.1.0");
    let pulled = with(
        pod("pulled", ""),
        &json!({"spec": {"containers": [with(container("main", "echo from the registry"), &json!({"image": image, "imagePullPolicy": "Always"}))]}}),
    );
    ensure!(once(&space, &pulled)? == "from the registry\n", "another output");
    space.event_with("Pod", "pulled", "Pulled", &format!("Successfully pulled image \"{image}\""))?;
    let id = space.kubectl(&["get", "pod", "pulled", "-o", "jsonpath={.status.containerStatuses[0].imageID}"])?;
    ensure!(id.contains("sha256:"), "{id}");
    once(&space, &special("untell", &format!("rm -r '/certs/{host}'"), &mount, &volume))?;
    Ok(())
}
