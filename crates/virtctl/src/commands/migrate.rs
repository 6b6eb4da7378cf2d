//! `virtctl migrate`: a running machine goes to another node, watched until it is there if that is wanted.

mod progress;

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::kubevirt::constants::migration_phase as phase;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use futures::{StreamExt, stream};
use kube::Api;
use kube::runtime::watcher::watch_object;
use progress::Watched;
use serde_json::{Value, json};

use super::request::{self, DryRun};
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// Move a running virtual machine to another node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    /// Label that the node must have beside those the machine asks for; kubernetes.io/hostname=NODE chooses one.
    #[arg(long = "addedNodeSelector", value_name = "KEY=VALUE", value_delimiter = ',')]
    added_node_selector: Vec<String>,
    /// Follow the migration until it ends; exit with 1 when it fails.
    #[arg(long, short = 'w')]
    watch: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

fn selector(words: &[String]) -> Result<BTreeMap<String, String>, Fault> {
    let pair = |word: &String| {
        let (key, value) = word.split_once('=').filter(|(key, _)| !key.is_empty())?;
        Some((key.to_owned(), value.to_owned()))
    };
    let wrong = |word: &String| {
        Fault::usage(format!("--addedNodeSelector: {word:?} is not a label"))
            .hint("write KEY=VALUE, for example kubernetes.io/hostname=node2")
    };
    words.iter().map(|word| pair(word).ok_or_else(|| wrong(word))).collect()
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let selector = selector(&args.added_node_selector)?;
    let options = if selector.is_empty() { json!({}) } else { json!({ "addedNodeSelector": selector }) };
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    let options = args.dry_run.add(options);
    let answer = request::send(&cluster, Kind::Vm, (&namespace, &name), "migrate", &options).await?;
    let done = args.dry_run.done(Kind::Vm, &name, "was scheduled to migrate")?;
    if !args.watch || args.dry_run.dry_run {
        return Ok(done);
    }
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    let Some(migration) = answer.pointer("/details/name").and_then(Value::as_str) else {
        return Err(Fault::new("cannot watch the migration")
            .because("the server did not say what it is called")
            .hint(format!("`kubectl get vmim -n {namespace} -w` shows it")));
    };
    watch(&cluster, (&namespace, &name), migration).await
}

/// One of the two objects that tell of a migration; none when it is gone.
enum News {
    Migration(Option<Box<Migration>>),
    Machine(Option<Box<VirtualMachineInstance>>),
}

async fn watch(cluster: &Cluster, (namespace, name): (&str, &str), migration: &str) -> Outcome {
    let what = format!("cannot watch migration {namespace}/{migration}");
    let migrations: Api<Migration> = Api::namespaced(cluster.client.clone(), namespace);
    let machines: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), namespace);
    let migrations = watch_object(migrations, migration).map(|news| news.map(|one| News::Migration(one.map(Box::new))));
    let machines = watch_object(machines, name).map(|news| news.map(|one| News::Machine(one.map(Box::new))));
    let mut news = Box::pin(stream::select(migrations, machines));
    let mut watched = Watched::default();
    while let Some(next) = news.next().await {
        match next {
            Ok(News::Migration(Some(object))) => watched.migration = Some(*object),
            Ok(News::Migration(None)) if watched.migration.is_some() => {
                return Err(Fault::new(format!("migration {namespace}/{migration} was canceled")));
            }
            Ok(News::Machine(Some(object))) => watched.machine = Some(*object),
            Ok(News::Migration(None) | News::Machine(None)) => {}
            Err(error) => return Err(Fault::new(what).because(crate::fault::chain(&error))),
        }
        if let Some(line) = watched.line() {
            output::say(&line)?;
        }
        match watched.phase() {
            phase::SUCCEEDED => return Ok(ExitCode::SUCCESS),
            phase::FAILED => {
                let fault = Fault::new(format!("VM {namespace}/{name} was not migrated"));
                return Err(match watched.failure() {
                    Some(why) => fault.because(why),
                    None => fault.hint(format!("`kubectl describe vmim -n {namespace} {migration}` tells more")),
                });
            }
            _ => {}
        }
    }
    Err(Fault::new(what).because("the server ended the watch"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_node() {
        #[track_caller]
        fn check(words: &[&str], expect: Result<&[(&str, &str)], &str>) {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let owned = |all: &[(&str, &str)]| {
                all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
            };
            let found =
                selector(&words).map_err(|fault| fault.to_string().lines().next().unwrap_or_default().to_owned());
            assert_eq!(found, expect.map(owned).map_err(str::to_owned));
        }
        check(&[], Ok(&[]));
        check(&["kubernetes.io/hostname=n2", "zone="], Ok(&[("kubernetes.io/hostname", "n2"), ("zone", "")]));
        check(&["n2"], Err("error: --addedNodeSelector: \"n2\" is not a label"));
    }
}
