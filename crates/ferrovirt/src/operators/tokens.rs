//! Tokens of the operators' accounts. The pod's own account may ask for these and for nothing else; each operator is known to the API
//! server, its policies and its audit as what it would be in a process of its own.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kit::backoff::Backoff;
use kube::api::PostParams;
use kube::{Api, Client};

/// How long a token is valid, in seconds: whoever gets hold of one has it no longer.
const LIFETIME: i64 = 3600;
/// When another one is asked for; what is left is time for an API server that does not answer.
const RENEWAL: Duration = Duration::from_secs(1800);
const PATIENCE: Duration = Duration::from_secs(30);

/// The token of an account, in a file that clients read again each minute.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) file: PathBuf,
}

impl Token {
    /// Asks until there is one: the account may not be there yet, or the right to ask.
    pub(super) async fn write_until_it_is_there(&self, client: &Client) {
        let mut failures = 0;
        while let Err(error) = self.write(client).await {
            failures += 1;
            // A pod may be there some moments before its rights are.
            if failures > 5 {
                tracing::warn!(account = self.account, "there is no token: {error:#}");
            }
            tokio::time::sleep(Backoff::QUEUE.jittered(failures)).await;
        }
    }

    /// Replaces the token long before it ends.
    pub(super) async fn keep(self, client: Client) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            self.write_until_it_is_there(&client).await;
        }
    }

    async fn write(&self, client: &Client) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(LIFETIME), ..Default::default() };
        let request = TokenRequest { spec, ..Default::default() };
        let how = PostParams::default();
        let asked = accounts.create_token_request(&self.account, &how, &request);
        let answer = tokio::time::timeout(PATIENCE, asked).await.context("the API server does not answer")?;
        let token = answer.context("it is not given")?.status.context("the answer has none")?.token;
        self.replace(&token).with_context(|| format!("cannot write {}", self.file.display()))
    }

    /// In one step: who reads it sees the old one or the new one.
    fn replace(&self, token: &str) -> std::io::Result<()> {
        let new = self.file.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(token.as_bytes())?;
        std::fs::rename(new, &self.file)
    }
}
