//! generate-ssh-keys: a new pair, the public key added to a Secret of such, the private key in a Secret of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::program;
use crate::cluster::{SECRET, what};
use crate::words::{given, pairs, write};
use crate::{Cluster, Error};

const PATIENCE: Duration = Duration::from_secs(300);
/// What execute-in-vm reads of a connection beside the key.
const OPTIONS: [&str; 4] = ["user", "host-public-key", "disable-strict-host-key-checking", "additional-ssh-options"];

/// Params of generate-ssh-keys.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The Secret of public keys
    #[arg(long, default_value = "")]
    public_key_secret_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    public_key_secret_namespace: String,
    /// The Secret of the private key
    #[arg(long, default_value = "")]
    private_key_secret_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    private_key_secret_namespace: String,
    /// KEY:VALUE of what connects with the key
    #[arg(long = "private-key-connection-option")]
    private_key_connection_options: Vec<String>,
    /// Options of ssh-keygen
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    additional_ssh_keygen_options: String,
    #[command(flatten)]
    results: Results,
}

/// Files for the names of both Secrets.
#[derive(Clone, Debug, Default, clap::Args)]
struct Results {
    /// Of public keys
    #[arg(long, value_name = "FILE")]
    public_key_secret_name_result: Option<PathBuf>,
    /// Its namespace
    #[arg(long, value_name = "FILE")]
    public_key_secret_namespace_result: Option<PathBuf>,
    /// Of the private key
    #[arg(long, value_name = "FILE")]
    private_key_secret_name_result: Option<PathBuf>,
    /// Its namespace
    #[arg(long, value_name = "FILE")]
    private_key_secret_namespace_result: Option<PathBuf>,
}

/// Makes the pair and both Secrets.
///
/// # Errors
/// When an option is not known, the Secret of the private key is there already, or the cluster refuses.
pub async fn run(cluster: &Cluster, args: &Args) -> Result<(), Error> {
    let options = options(&args.private_key_connection_options)?;
    let more = shlex::split(&args.additional_ssh_keygen_options)
        .ok_or_else(|| Error::param("additionalSSHKeygenOptions", "a quotation mark is not closed"))?;
    let of = |text: &str| given(text).unwrap_or(&cluster.namespace).to_owned();
    let (public_at, private_at) = (of(&args.public_key_secret_namespace), of(&args.private_key_secret_namespace));
    if let Some(name) = given(&args.private_key_secret_name)
        && cluster.get(SECRET, &private_at, name).await?.is_some()
    {
        let message = format!("{} is there already: choose another name", what(SECRET, &private_at, name));
        return Err(Error::param("privateKeySecretName", message));
    }
    let (private, public) = generate(more).await?;
    let mut data = json!({ "ssh-privatekey": BASE64_STANDARD.encode(&private), "type": BASE64_STANDARD.encode("ssh") });
    for (key, value) in options {
        data[key] = json!(BASE64_STANDARD.encode(value));
    }
    let secret = json!({ "metadata": metadata(&args.private_key_secret_name, "private-key-"), "type": "kubernetes.io/ssh-auth", "data": data });
    let private_name = cluster.create(SECRET, &private_at, &secret).await?;
    let published = publish(cluster, &public_at, given(&args.public_key_secret_name), &public).await;
    let public_name = match published {
        Ok(name) => name,
        Err(error) => return Err(undo(cluster, &private_at, &private_name, error).await),
    };
    let results = &args.results;
    for (file, text) in [
        (&results.public_key_secret_name_result, &public_name),
        (&results.public_key_secret_namespace_result, &public_at),
        (&results.private_key_secret_name_result, &private_name),
        (&results.private_key_secret_namespace_result, &private_at),
    ] {
        if let Some(file) = file {
            write(file, text)?;
        }
    }
    Ok(())
}

/// Takes away the private key, whose public key is nowhere; why it is so.
async fn undo(cluster: &Cluster, namespace: &str, name: &str, error: Error) -> Error {
    match cluster.remove(SECRET, namespace, name).await {
        Ok(_) => error,
        Err(more) => Error::Together { told: format!("{}; {}", kit::Chain(&error), kit::Chain(&more)), code: 1 },
    }
}

fn options(all: &[String]) -> Result<Vec<(String, String)>, Error> {
    let all = pairs("privateKeyConnectionOptions", all)?;
    match all.iter().find(|(key, _)| !OPTIONS.contains(&key.as_str())) {
        Some((key, _)) => {
            let message = format!("{key:?} is none of {}", OPTIONS.join(", "));
            Err(Error::param("privateKeyConnectionOptions", message))
        }
        None => Ok(all),
    }
}

fn metadata(name: &str, prefix: &str) -> Value {
    given(name).map_or_else(|| json!({ "generateName": prefix }), |name| json!({ "name": name }))
}

/// Adds the key to the Secret, which is made where it is not there.
async fn publish(cluster: &Cluster, namespace: &str, name: Option<&str>, key: &str) -> Result<String, Error> {
    let digest: String = Sha256::digest(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let data = json!({ format!("ssh-publickey-{digest}"): BASE64_STANDARD.encode(key) });
    if let Some(name) = name
        && cluster.get(SECRET, namespace, name).await?.is_some()
    {
        cluster.merge(SECRET, namespace, name, &json!({ "data": data })).await?;
        return Ok(name.to_owned());
    }
    let secret =
        json!({ "metadata": metadata(name.unwrap_or_default(), "public-key-"), "type": "Opaque", "data": data });
    cluster.create(SECRET, namespace, &secret).await
}

/// The private and the public key.
async fn generate(more: Vec<String>) -> Result<(String, String), Error> {
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", Path::new("/tmp")))?;
    let file = dir.path().join("key");
    let mut words: Vec<String> =
        ["-q", "-N", "", "-C", "generated by generate-ssh-keys", "-f"].map(str::to_owned).to_vec();
    words.push(file.to_string_lossy().into_owned());
    words.extend(more);
    program::output("ssh-keygen", words, PATIENCE).await?;
    let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::file("read", path));
    Ok((read(&file)?, read(&file.with_extension("pub"))?.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_connection_are_known_ones() {
        let of = |text: &str| options(&[text.to_owned()]);
        assert_eq!(of("user:fedora").unwrap(), [("user".to_owned(), "fedora".to_owned())]);
        assert!(of("port:22").unwrap_err().to_string().contains("\"port\" is none of"));
    }
}
