//! A containerd of its own, an API server in memory, and a kubelet between them; all gone when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::image;
use crate::streams::Tls;

/// Names of what a run makes begin so, and end with the run's pid: a later run can tell what was left behind.
const NODE_PREFIX: &str = "kubelet-test-";
const DIR_PREFIX: &str = "kubelet-it-";

pub(crate) fn node() -> String {
    format!("{NODE_PREFIX}{}", std::process::id())
}

fn bridge(pid: u32) -> String {
    format!("fvt{}", pid % 1_000_000)
}

pub(crate) struct Machine {
    pub(crate) dir: PathBuf,
    pub(crate) client: Client,
    containerd: Child,
    pub(crate) tls: Tls,
    stop: CancellationToken,
    kubelet: Option<tokio::task::JoinHandle<kubelet::Result<()>>>,
}

impl Machine {
    pub(crate) async fn start() -> Machine {
        let uid = std::fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)).unwrap();
        assert_eq!(uid, 0, "these tests run containers: run them as root");
        for tool in ["containerd", "ctr", "runc", "busybox"] {
            let found =
                std::env::var("PATH").unwrap_or_default().split(':').any(|dir| Path::new(dir).join(tool).exists());
            assert!(found || Path::new("/usr/sbin").join(tool).exists(), "these tests need {tool}: run `make deps`");
        }
        if std::env::var_os("RUST_LOG").is_some() {
            let _ =
                tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init();
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        sweep();
        let dir = std::env::temp_dir().join(format!("{DIR_PREFIX}{}", std::process::id()));
        std::fs::create_dir_all(dir.join("cni")).unwrap();
        let bridge = bridge(std::process::id());
        let subnet = format!("10.199.{}.0/24", std::process::id() % 250);
        let conf = json!({"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "bridge", "bridge": bridge, "isGateway": true,
            "ipam": {"type": "host-local", "dataDir": dir.join("ipam"), "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}}]});
        std::fs::write(dir.join("cni/10-test.conflist"), conf.to_string()).unwrap();
        let config = format!(
            r#"version = 2
root = "{0}/root"
state = "{0}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{0}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{1}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{0}/cni"
"#,
            dir.display(),
            image::IMAGE
        );
        std::fs::write(dir.join("config.toml"), config).unwrap();
        let log = std::fs::File::create(dir.join("containerd.log")).unwrap();
        let containerd = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|p| p.exists()).unwrap();
        image::write(&dir.join("image.tar"), busybox);
        let mut machine = Machine {
            client: fresh_cluster().await,
            dir,
            containerd,
            tls: Tls::new(),
            stop: CancellationToken::new(),
            kubelet: None,
        };
        let began = Instant::now();
        while !machine.ctr(&["version"]) {
            assert!(began.elapsed() < Duration::from_secs(20), "containerd does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(machine.ctr(&["-n", "k8s.io", "images", "import", machine.dir.join("image.tar").to_str().unwrap()]));
        machine.start_kubelet();
        machine
    }

    pub(crate) fn start_kubelet(&mut self) {
        self.stop = CancellationToken::new();
        let config = kubelet::Config {
            node_name: node(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            root: self.dir.join("kubelet"),
            log_dir: self.dir.join("logs"),
            cdi_dirs: vec![self.dir.join("cdi")],
            containerd: self.dir.join("containerd.sock"),
            cluster_dns: vec!["10.199.255.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            pod_cidrs: vec![],
            labels: Default::default(),
            max_pods: 110,
            guard: None,
            uplinks: None,
            power_off: CancellationToken::new(),
            server: Some(self.tls.server.clone()),
        };
        self.kubelet = Some(tokio::spawn(Box::pin(kubelet::run(config, self.client.clone(), self.stop.clone()))));
    }

    pub(crate) async fn stop_kubelet(&mut self) {
        self.stop.cancel();
        if let Some(task) = self.kubelet.take() {
            task.await.unwrap().unwrap();
        }
    }

    pub(crate) fn ctr(&self, args: &[&str]) -> bool {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.dir.join("containerd.sock")).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a pod bound to this node: `spec` needs only what matters.
    pub(crate) async fn create(&self, name: &str, mut spec: serde_json::Value) -> Pod {
        spec["nodeName"] = node().into();
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if container.get("image").is_none() {
                    container["image"] = image::IMAGE.into();
                }
            }
        }
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    pub(crate) async fn wait(&self, name: &str, what: &str, condition: impl Condition<Pod>) -> Option<Pod> {
        let waiting = await_condition(self.pods(), name, condition);
        match tokio::time::timeout(Duration::from_secs(40), waiting).await {
            Ok(found) => found.unwrap(),
            Err(_) => {
                let pod = self.pods().get_opt(name).await.unwrap();
                let status = pod.and_then(|pod| pod.status);
                panic!("{name} never was {what}; its status: {}", serde_json::to_string_pretty(&status).unwrap());
            }
        }
    }

    pub(crate) async fn phase(&self, name: &str, phase: &'static str) -> Pod {
        let at = move |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(phase);
        self.wait(name, phase, at).await.unwrap()
    }

    pub(crate) async fn ready(&self, name: &str) -> Pod {
        self.wait(name, "ready", |pod: Option<&Pod>| condition(pod, "Ready") == Some("True".to_owned())).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str, grace: u32) {
        self.pods().delete(name, &DeleteParams::default().grace_period(grace)).await.unwrap();
        self.wait(name, "gone", |pod: Option<&Pod>| pod.is_none()).await;
    }

    /// The container's log.
    pub(crate) fn log(&self, pod: &Pod, container: &str, attempt: u32) -> String {
        let dir = format!("default_{}_{}", pod.name_any(), pod.uid().unwrap());
        let text =
            std::fs::read_to_string(self.dir.join("logs").join(dir).join(container).join(format!("{attempt}.log")));
        let text = text.unwrap_or_default();
        text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(|line| format!("{line}\n")).collect()
    }
}

pub(crate) fn condition(pod: Option<&Pod>, kind: &str) -> Option<String> {
    let conditions = pod?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.clone())
}

async fn fresh_cluster() -> Client {
    let server = kube_apiserver::ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = ServiceAccount {
        metadata: kube::api::ObjectMeta { name: Some("default".into()), ..Default::default() },
        ..Default::default()
    };
    if accounts.get_opt("default").await.unwrap().is_none() {
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    if maps.get_opt("kube-root-ca.crt").await.unwrap().is_none() {
        let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "none"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    client
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(task) = self.kubelet.take() {
            task.abort();
        }
        clear(&self.dir, std::process::id());
        let _ = self.containerd.wait();
        if std::thread::panicking() {
            eprintln!("containerd's log is kept in {} until the next run", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Removes what runs that were killed have left: their containerd and its containers, mounts, groups, interfaces.
fn sweep() {
    let is_over = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_prefix(DIR_PREFIX).and_then(|pid| pid.parse().ok()).filter(|pid| is_over(*pid)) {
            clear(&entry.path(), pid);
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    // Also of runs whose directory is gone already.
    for hierarchy in sys::cgroup::hierarchies().unwrap_or_default() {
        for entry in std::fs::read_dir(hierarchy.mount.join("ferrovirt")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix(NODE_PREFIX.trim_end_matches('-')) else { continue };
            if pid.trim_start_matches('-').parse().map_or(true, is_over) {
                end(|| sys::cgroup::pids(&entry.path()));
                let _ = sys::cgroup::remove(&entry.path());
            }
        }
    }
}

/// Kills the processes until there are none.
fn end(find: impl Fn() -> Vec<u32>) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        let pids = find();
        if pids.is_empty() {
            return;
        }
        let words = pids.iter().map(ToString::to_string);
        let _ = Command::new("kill").arg("-KILL").args(words).stderr(Stdio::null()).status();
    }
}

/// Ends what the run `pid` has started in `dir`, and removes what it made elsewhere.
fn clear(dir: &Path, pid: u32) {
    let own = dir.to_string_lossy().into_owned();
    let groups: Vec<PathBuf> = sys::cgroup::hierarchies()
        .unwrap_or_default()
        .into_iter()
        .map(|hierarchy| hierarchy.mount.join("ferrovirt").join(format!("{NODE_PREFIX}{pid}")))
        .collect();
    // Without their shims containers are found by their groups only.
    end(|| started_in(&own).into_iter().chain(groups.iter().flat_map(|group| sys::cgroup::pids(group))).collect());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with(&own)) {
        let _ = Command::new("umount").arg("-l").arg(mount).status();
    }
    for group in groups {
        let _ = sys::cgroup::remove(&group);
    }
    let _ = Command::new("ip").args(["link", "del", &bridge(pid)]).stderr(Stdio::null()).status();
}

/// containerd and the shims whose command line names `own`, and everything below them. The dead that nobody has waited
/// for yet do not count.
fn started_in(own: &str) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        if fields.starts_with('Z') {
            continue;
        }
        let parent = fields.split(' ').nth(1).and_then(|parent| parent.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
        let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let program = command.split('\0').next().unwrap_or_default();
        if program.contains("containerd") && command.contains(&format!("{own}/")) {
            found.push(pid);
        }
    }
    let mut index = 0;
    while let Some(parent) = found.get(index).copied() {
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        index += 1;
    }
    found
}
