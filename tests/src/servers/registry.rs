//! Debian's container registry, with TLS or without.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{HOST, Program, certificate, free_port};
use crate::image;

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A registry, reached on loopback and on the nodes' network.
pub struct Registry {
    _program: Program,
    _dir: TempDir,
    /// Its port.
    pub port: u16,
    /// What those must trust who ask it; none asks by plain HTTP.
    pub certificate: Option<String>,
}

impl Registry {
    /// Starts it without TLS, as on anybody's own network, and with no image.
    pub fn start() -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, None)
    }

    /// Starts it with TLS.
    pub fn secure() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let pair = certificate(dir.path())?;
        Self::start_in(dir, Some(pair))
    }

    fn start_in(dir: TempDir, pair: Option<(PathBuf, PathBuf)>) -> Result<Self> {
        let port = free_port("127.0.0.1")?;
        let mut http = json!({ "addr": format!(":{port}") });
        let mut trusted = None;
        if let Some((certificate, key)) = pair {
            http["tls"] = json!({ "certificate": certificate, "key": key });
            trusted = Some(fs::read_to_string(certificate)?);
        }
        let storage = json!({ "filesystem": { "rootdirectory": dir.path().join("blobs") } });
        let config = dir.path().join("config.yml");
        // JSON is YAML.
        fs::write(&config, json!({ "version": 0.1, "storage": storage, "http": http }).to_string())?;
        let mut command = Command::new("docker-registry");
        let program = Program::start(command.arg("serve").arg(&config), "127.0.0.1", &[port])?;
        Ok(Self { _program: program, _dir: dir, port, certificate: trusted })
    }

    /// Its name to nodes and pods.
    pub fn host(&self) -> String {
        format!("{HOST}:{}", self.port)
    }

    /// Gives it an image with these files, under a name that may have a tag; returns the image's full name.
    pub fn push(&self, name: &str, files: &[(&str, &[u8])]) -> Result<String> {
        let plain = image::layer(files)?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&plain)?;
        let packed = packed.finish()?;
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": [digest(&plain)] },
        });
        let config = config.to_string().into_bytes();
        let described =
            |kind: &str, bytes: &[u8]| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() });
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST,
            "config": described(CONFIG, &config), "layers": [described(LAYER, &packed)] });
        let (repository, tag) = name.split_once(':').unwrap_or((name, "latest"));
        self.blob(repository, &config)?;
        self.blob(repository, &packed)?;
        let kind = format!("Content-Type: {MANIFEST}");
        let place = self.address(&format!("{repository}/manifests/{tag}"));
        curl(&["-X", "PUT", "-H", &kind, "--data-binary", "@-", &place], &Value::to_string(&manifest).into_bytes())?;
        Ok(format!("{}/{repository}:{tag}", self.host()))
    }

    /// The configuration of an image that somebody has sent.
    pub fn config(&self, repository: &str, tag: &str) -> Result<Value> {
        let accept = format!("Accept: {MANIFEST}");
        let manifest = curl(&["-H", &accept, &self.address(&format!("{repository}/manifests/{tag}"))], b"")?;
        let manifest: Value = serde_json::from_str(&manifest).context("the manifest is no JSON")?;
        let digest = manifest["config"]["digest"].as_str().context("the image has no configuration")?;
        let config = curl(&[&self.address(&format!("{repository}/blobs/{digest}"))], b"")?;
        serde_json::from_str(&config).context("the configuration is no JSON")
    }

    fn blob(&self, repository: &str, bytes: &[u8]) -> Result<()> {
        let began = curl(&["-X", "POST", "-D", "-", &self.address(&format!("{repository}/blobs/uploads/"))], b"")?;
        let mut headers = began.lines().filter_map(|line| line.split_once(": "));
        let location = headers.find(|(name, _)| name.eq_ignore_ascii_case("location")).map(|(_, place)| place);
        let location = location.with_context(|| format!("the registry named no place for a layer: {began}"))?;
        let place = format!("{}&digest={}", location.trim(), digest(bytes));
        let kind = "Content-Type: application/octet-stream";
        curl(&["-X", "PUT", "-H", kind, "--data-binary", "@-", &place], bytes).map(drop)
    }

    fn scheme(&self) -> &str {
        if self.certificate.is_some() { "https" } else { "http" }
    }

    fn address(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}/v2/{path}", self.scheme(), self.port)
    }

    /// Tells the containerd of each node how it is spoken to, for as long as the answer is held.
    pub fn named_to_nodes(&self) -> Result<Named> {
        let mut named = Named(Vec::new());
        for root in image::nodes()? {
            let dir = root.join("etc/containerd/certs.d").join(self.host());
            fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            let place = format!("[host.\"{}://{}\"]\nskip_verify = true\n", self.scheme(), self.host());
            fs::write(dir.join("hosts.toml"), place)?;
            named.0.push(dir);
        }
        Ok(named)
    }
}

/// What nodes were told of a registry.
pub struct Named(Vec<PathBuf>);

impl Drop for Named {
    fn drop(&mut self) {
        for dir in &self.0 {
            // A node that is gone knows nothing any more.
            let _ = fs::remove_dir_all(dir);
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Asks, and returns what was printed; an answer that is no success is an error.
fn curl(words: &[&str], body: &[u8]) -> Result<String> {
    let mut command = Command::new("curl");
    let command = command.args(["-sS", "--fail", "--insecure", "--max-time", "60"]).args(words);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(body).context("cannot hand curl what to send")?;
    }
    let output = child.wait_with_output().context("curl did not end")?;
    ensure!(output.status.success(), "curl {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    match String::from_utf8(output.stdout) {
        Ok(text) => Ok(text),
        Err(_) => bail!("curl {}: the answer is no text", words.join(" ")),
    }
}
