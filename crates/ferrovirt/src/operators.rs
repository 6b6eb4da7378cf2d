//! `operators`: several operators in one process, each with an account of its own.
//!
//! ```text
//! ACCOUNT=COMMAND … -> a token of each account, in a file -> the operator's own `run`, with that token
//! ```
//!
//! On one machine there is one of each, and a process for each would cost more memory than all that they do. One that ends ends the
//! process: the kubelet starts all of them again.

mod arrangement;
mod manifest;
mod tokens;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kit::health::{self, Ready};
use kit::operator::Process;
use kit::{server, shutdown, tls};

pub(crate) use self::arrangement::{Arrangement, are_together};
pub(crate) use self::manifest::NAME;
use crate::arguments::Wrapped;
use crate::failure::parse;

/// What the process is called.
pub(crate) const PROGRAM: &str = "operators";
/// Where its health is asked for.
const PORT: u16 = 8440;
/// A file system in memory.
const TOKENS: &str = "/run/operators";

/// Run several operators in one process
#[derive(Debug, Args)]
pub(crate) struct Operators {
    /// Namespace of the accounts
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Directory for the tokens of the accounts
    #[arg(long, default_value = TOKENS)]
    tokens: PathBuf,
    /// Port for health
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// An operator: its account, and its command with arguments
    #[arg(required = true, value_name = "ACCOUNT=COMMAND")]
    operators: Vec<Line>,
}

/// An operator and whom it is known as.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    account: String,
    command: String,
    words: Vec<OsString>,
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (account, command) = text.split_once('=').ok_or("it is not ACCOUNT=COMMAND")?;
        let mut words = command.split_whitespace();
        let command = words.next().filter(|_| !account.is_empty()).ok_or("it is not ACCOUNT=COMMAND")?;
        Ok(Line { account: account.to_owned(), command: command.to_owned(), words: words.map(Into::into).collect() })
    }
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// The operator of that command, which runs when it is polled.
///
/// # Errors
/// When there is none, or it does not take these arguments.
fn operator(line: Line, process: Process) -> anyhow::Result<Running> {
    let Line { command, words, .. } = line;
    let running = match command.as_str() {
        "virt-operator" => started(words, process, virt_operator::run),
        "cdi-operator" => started(words, process, cdi::operator::run),
        "cluster-network-addons-operator" => started(words, process, cnao::operator::run),
        "ssp-operator" => started(words, process, ssp::operator::run),
        "hostpath-provisioner-operator" => started(words, process, hpp::operator::run),
        "hyperconverged-cluster-operator" => started(words, process, hco::operator::run),
        _ => Err(anyhow::anyhow!("it is no operator")),
    };
    running.with_context(|| format!("cannot start {command}"))
}

fn started<A, F, E>(words: Vec<OsString>, process: Process, run: fn(A, Process) -> F) -> anyhow::Result<Running>
where
    A: Args,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<anyhow::Error>,
{
    let parsed = parse::<Wrapped<A>>(words)?.context("it was asked for help")?;
    let running = run(parsed.component, process);
    Ok(Box::pin(async move { running.await.map_err(Into::into) }))
}

/// Runs until SIGTERM, or until one of the operators ends.
///
/// # Errors
/// When one cannot start, or ends with an error.
pub(crate) async fn run(args: Operators) -> anyhow::Result<()> {
    let stop = shutdown::on_signals().context("cannot handle signals")?;
    let client = kit::client::connect(PROGRAM).await.context("cannot reach the API server")?;
    let (mut all, mut ready, mut accounts) = (FuturesUnordered::new(), Vec::new(), Vec::new());
    for line in args.operators {
        let (file, this) = (args.tokens.join(&line.account), Ready::default());
        let (name, account) = (line.command.clone(), line.account.clone());
        let running = operator(line, Process::shared(file.clone(), this.clone()))?;
        let token = tokens::Token { namespace: args.namespace.clone(), account, file };
        accounts.push(token.clone());
        let client = client.clone();
        all.push(async move {
            token.write_until_it_is_there(&client).await;
            running.await.with_context(|| format!("{name} ended"))
        });
        ready.push(this);
    }
    let material = tls::Material::of_its_own(PROGRAM).context("cannot make a certificate")?;
    let config = tls::Changing::new(material, None).context("cannot configure TLS")?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener =
        tokio::net::TcpListener::bind(address).await.with_context(|| format!("cannot listen on {}", args.port))?;
    let _health = kit::spawn("health", server::serve_tls(listener, config, health::of_all(ready), stop.clone()));
    let _tokens: Vec<_> = accounts.into_iter().map(|token| kit::spawn("token", token.keep(client.clone()))).collect();
    while let Some(ended) = all.next().await {
        ended?;
        anyhow::ensure!(stop.is_cancelled(), "an operator ended, and nobody had told it to");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_written_as_its_account_and_its_command() {
        let line = "kubevirt-operator=virt-operator --port=1 --webhook-port=2".parse::<Line>().unwrap();
        assert_eq!((line.account.as_str(), line.command.as_str()), ("kubevirt-operator", "virt-operator"));
        assert_eq!(line.words, ["--port=1", "--webhook-port=2"]);
        for wrong in ["virt-operator", "=virt-operator", "account=", "account= "] {
            assert!(wrong.parse::<Line>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_operator_or_has_wrong_arguments_is_named() {
        let error = |text: &str| {
            let line = text.parse().unwrap();
            format!("{:#}", operator(line, Process::default()).err().unwrap())
        };
        assert_eq!(error("a=virt-api"), "cannot start virt-api: it is no operator");
        assert!(error("a=cdi-operator --nonsense").contains("--nonsense"));
    }
}
