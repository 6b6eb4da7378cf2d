//! The product's images in a registry, and a pod made of them from there.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, root, until};
use serde_json::json;

use crate::Test;
use crate::pods::{container, once, pod, special, with};

pub(crate) const TESTS: &[Test] = &[("images_are_pushed_and_pulled", images_are_pushed_and_pulled)];

/// Debian's registry without TLS, reached on loopback and on the node's network.
struct Registry {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Registry {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = dir.path().join("config.yml");
        let storage = dir.path().display();
        std::fs::write(
            &config,
            format!("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {storage}\nhttp:\n  addr: :{port}\n"),
        )?;
        let mut command = Command::new("docker-registry");
        let command = command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().context("cannot run docker-registry: `make deps` installs it")?;
        let registry = Self { process, port, _dir: dir };
        until("the registry listened", || Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(())))?;
        Ok(registry)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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
    ensure!(said.contains(&format!("pushing {place}/component:v0.1.0")) && said.contains("pushed 5 images"), "{said}");
    let secure = Command::new(root().join("bin/ferrovirt")).args(["images", "push", &place]).output()?;
    let refused = String::from_utf8_lossy(&secure.stderr).into_owned();
    ensure!(
        refused.contains("the registry does not speak TLS\nhint: ") && refused.contains("--plain-http"),
        "{refused}"
    );
    let again = push(&place)?;
    ensure!(again.status.success(), "{again:?}");

    // The node speaks HTTPS to registries unless it is told otherwise, by a file as containerd documents it.
    let host = format!("10.88.0.1:{}", registry.port);
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
    let events = space.kubectl(&["get", "events", "--field-selector=involvedObject.name=pulled,reason=Pulled"])?;
    ensure!(events.contains(&format!("Successfully pulled image \"{image}\"")), "{events}");
    let id = space.kubectl(&["get", "pod", "pulled", "-o", "jsonpath={.status.containerStatuses[0].imageID}"])?;
    ensure!(id.contains("sha256:"), "{id}");
    once(&space, &special("untell", &format!("rm -r '/certs/{host}'"), &mount, &volume))?;
    Ok(())
}
