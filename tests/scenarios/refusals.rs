//! What cannot be filled says why in a sentence, and goes on where it can.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use e2e::machine::phase;
use e2e::servers::web::Web;
use e2e::{Namespace, disks, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::data_volume::{apply, says, succeeded, volume};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("impossible_data_volumes_name_the_reason", impossible_data_volumes_name_the_reason)]
}

const SIZE: &str = "8Mi";
/// Of a class that is made later.
const CLASS: &str = "refusals-test";

fn http(url: &str) -> Value {
    json!({ "http": { "url": url } })
}

/// An image that qemu-img makes without asking what it is told.
fn made(words: &[&str]) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-u", "-f", "qcow2"]).args(&words[..words.len() - 1]).arg(&path).args(words.last());
    let output = command.output().context("cannot run qemu-img")?;
    ensure!(output.status.success(), "qemu-img: {}", String::from_utf8_lossy(&output.stderr));
    Ok(std::fs::read(path)?)
}

/// DataVolumes by name with their sources, and what their condition `Running` says in the end.
fn hostile(web: &Web) -> Result<Vec<(Value, &'static str)>> {
    let (_, packed) = disks::image("packed", "raw.gz")?;
    web.put("truncated", &packed[..packed.len() / 2])?;
    web.put("good", &disks::image("good", "qcow2")?.1)?;
    web.put("backing", &made(&["-b", "/etc/passwd", "-F", "raw", "4M"])?)?;
    web.put("huge", &made(&["1T"])?)?;
    web.put("bomb", &zstd::encode_all(std::io::repeat(0).take(64 << 20), 1)?)?;
    web.put("page", b"<!DOCTYPE html><title>Sign in</title>")?;
    let wrong = json!({ "http": { "url": web.url("good"), "checksum": format!("sha256:{}", "0".repeat(64)) } });
    let asked = |name: &str| http(&web.url(name));
    Ok([
        ("truncated", asked("truncated"), "the gzip archive is cut short: fetch or upload it again"),
        (
            "backing",
            asked("backing"),
            "the qcow2 image has a backing file (\"/etc/passwd\"), which would make QEMU read another file",
        ),
        ("huge", asked("huge"), "the image's virtual size of 1099511627776 bytes is larger than the"),
        ("bomb", asked("bomb"), "larger than the reported available storage"),
        ("page", asked("page"), "the file is an HTML page, not a disk image"),
        ("missing", asked("nothing"), "expected status code 200, got 404"),
        ("locked", asked("private/good"), "expected status code 200, got 401"),
        ("stranger", http(&web.secure_url("good")), "certificate"),
        ("wrong", wrong, "checksum mismatch"),
    ]
    .map(|(name, source, words)| (volume(name, SIZE, &source), words))
    .to_vec())
}

fn impossible_data_volumes_name_the_reason() -> Result<()> {
    let space = Namespace::new("refusals")?;
    let web = Web::start()?;
    let told = hostile(&web)?;
    let mut objects: Vec<Value> = told.iter().map(|(volume, _)| volume.clone()).collect();
    let mut elsewhere = volume("elsewhere", SIZE, &json!({ "blank": {} }));
    elsewhere["spec"]["storage"]["storageClassName"] = json!(CLASS);
    objects.extend([elsewhere, volume("late", SIZE, &json!({ "upload": {} }))]);
    apply(&space, objects)?;

    let poor = Namespace::new("refusals-quota")?;
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "storage" },
        "spec": { "hard": { "requests.storage": "4Mi" } } });
    apply(&poor, vec![quota])?;
    poor.wait("resourcequota", "storage", "was counted", |quota| quota["status"]["hard"].is_object())?;
    apply(&poor, vec![volume("much", SIZE, &json!({ "blank": {} }))])?;

    let class = Class;
    says(&space, "elsewhere", "Bound", CLASS)?;
    says(&poor, "much", "Bound", "exceeded quota")?;
    token(&space, &disks::image("late", "raw.gz")?.1)?;
    for (volume, words) in &told {
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        let found = says(&space, name, "Running", words)?;
        ensure!(phase(&found) != "Succeeded", "{name}: {}", found["status"]);
    }
    space.wait("datavolume", "wrong", "failed for good", |found| phase(found) == "Failed")?;

    // What was in the way goes away.
    poor.patch("resourcequota", "storage", &json!({ "spec": { "hard": { "requests.storage": "64Mi" } } }))?;
    class.make(&space)?;
    succeeded(&poor, "much")?;
    succeeded(&space, "elsewhere")?;
    succeeded(&space, "late").map(drop)
}

/// A storage class that comes late, and goes at the end.
struct Class;

impl Class {
    /// Makes it, like the default class but for its name.
    fn make(&self, space: &Namespace) -> Result<()> {
        let like = space.get("storageclass", "hostpath-csi")?;
        let mut class =
            json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": CLASS } });
        for key in ["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode", "allowVolumeExpansion"] {
            class[key] = like[key].clone();
        }
        space.apply(&class)
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        let _ = Namespace::kubectl_in("default", &["delete", "storageclass", CLASS, "--ignore-not-found"]);
    }
}

/// An upload with a token whose time is over, and one with a token that is good.
fn token(space: &Namespace, file: &[u8]) -> Result<()> {
    space.wait("datavolume", "late", "took uploads", |found| phase(found) == "UploadReady")?;
    let now = jiff::Timestamp::now().as_second();
    // Who is refused sends on for a while, and is to see why all the same.
    let large = vec![0; 64 << 20];
    let (late, good) = (signed(space, now - 600)?, signed(space, now)?);
    for version in ["--http1.1", "--http2"] {
        let (status, said) = upload(space, version, &late, &large)?;
        ensure!(status == "401" && said.contains("the token is not good at this time"), "{version}: {status}: {said}");
        let (status, said) = upload(space, version, &good, &large)?;
        ensure!(status == "400" && said.contains(TOO_LARGE), "{version}: {status}: {said}");
    }
    let path = tempfile::NamedTempFile::new()?;
    path.as_file().set_len(large.len() as u64)?;
    let path = format!("--image-path={}", path.path().display());
    let said = space.virtctl_refused(&["image-upload", "dv", "late", "--no-create", &path, "--insecure"])?;
    ensure!(said.contains(TOO_LARGE), "virtctl: {said}");
    let (status, said) = upload(space, "--http2", &signed(space, jiff::Timestamp::now().as_second())?, file)?;
    ensure!(status == "200", "{status}: {said}");
    Ok(())
}

const TOO_LARGE: &str = "larger than the reported available storage";

/// A token for the claim `late`, as cdi-apiserver signs it, that is good for five minutes from a moment on.
fn signed(space: &Namespace, from: i64) -> Result<String> {
    let secret = product::kubectl(&["get", "secret", "cdi-api-signing-key", "-o", "jsonpath={.data.id_rsa}"])?;
    let dir = tempfile::tempdir()?;
    let key = dir.path().join("key");
    std::fs::write(&key, BASE64_STANDARD.decode(secret.trim()).context("the key is no base64")?)?;
    let claims = json!({
        "operation": "Upload", "name": "late", "namespace": space.name(),
        "resource": { "group": "", "version": "v1", "resource": "persistentvolumeclaims" },
        "iss": "cdi-apiserver", "iat": from, "nbf": from, "exp": from + 300,
    });
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let token = format!("{}.{}", part(&json!({ "alg": "PS256" })), part(&claims));
    let mut command = Command::new("openssl");
    command.args(["dgst", "-sha256", "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:digest", "-sign"]);
    let signature = piped(command.arg(&key), token.as_bytes())?;
    Ok(format!("{token}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// Sends a file to the upload proxy, as a program without virtctl would; returns the status and the answer.
fn upload(space: &Namespace, version: &str, token: &str, file: &[u8]) -> Result<(String, String)> {
    let address = ["get", "service", "cdi-uploadproxy", "-o", "jsonpath={.spec.clusterIP}"];
    let url = format!("https://{}/v1beta1/upload", product::kubectl(&address)?);
    let bearer = format!("Authorization: Bearer {token}");
    let mut command = Command::new("curl");
    command.args(["-sS", version, "--insecure", "--max-time", "60", "-w", "\n%{http_code}", "-H", &bearer]);
    let command = command.args(["-H", "Content-Type: application/octet-stream", "--data-binary", "@-", &url]);
    let answer = String::from_utf8_lossy(&piped(command, file)?).into_owned();
    let (said, status) = answer.rsplit_once('\n').with_context(|| format!("{}: {answer}", space.name()))?;
    Ok((status.to_owned(), said.to_owned()))
}

/// Runs a program on an input and returns its output.
fn piped(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who refuses does not read to the end.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().with_context(|| format!("{name} did not end"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
