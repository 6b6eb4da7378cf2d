//! `ferrovirt demo`: the demo VM from its manifest, until its guest answers, and what to do with it then.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::kubevirt::v1::VirtualMachineInstance;
use clap::Parser;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

use crate::failure::{advise, parse};
use crate::state::{State, StateArgs};
use crate::{cluster, deploy, terminal};

/// What is applied; also in the repository for reading.
const MANIFEST: &str = include_str!("../../../deploy/demo/vm.yaml");
const NAME: &str = "demo";
const NAMESPACE: &str = "default";
const PATIENCE: Duration = Duration::from_secs(180);

/// Create the demo VM, wait until its guest runs, and say what to do with it
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct DemoArgs {
    #[command(flatten)]
    state: StateArgs,
}

/// `ferrovirt demo`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<DemoArgs>(words)? else { return Ok(()) };
    terminal::log("warn");
    let state = arguments.state.state()?;
    if state.control_plane_pid()?.is_none() {
        return Err(advise(anyhow::anyhow!("no cluster runs"), "`ferrovirt up` starts it"));
    }
    cluster::runtime()?.block_on(run(&state))
}

async fn run(state: &State) -> anyhow::Result<()> {
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    let since = Instant::now();
    deploy::apply_manifest(&client, MANIFEST).await?;
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), NAMESPACE);
    wait(&vmis, "runs", |vmi| phase(vmi) == "Running").await?;
    terminal::say(&format!("{:>7.2} s  VM {NAME} runs", since.elapsed().as_secs_f64()));
    let since = Instant::now();
    wait(&vmis, "has booted", has_agent).await?;
    terminal::say(&format!("{:>7.2} s  its guest has booted", since.elapsed().as_secs_f64()));
    next_commands(state, &client).await
}

async fn wait(
    vmis: &Api<VirtualMachineInstance>,
    what: &str,
    check: impl Fn(&VirtualMachineInstance) -> bool,
) -> anyhow::Result<()> {
    let condition = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(&check);
    match tokio::time::timeout(PATIENCE, await_condition(vmis.clone(), NAME, condition)).await {
        Ok(result) => result.map(|_| ()).context("cannot watch the VM"),
        Err(_) => {
            let error = anyhow::anyhow!("no sign after {} s that VM {NAME} {what}", PATIENCE.as_secs());
            Err(advise(error, format!("`virtctl explain {NAME}` says why")))
        }
    }
}

fn phase(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn has_agent(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.type_ == "AgentConnected" && c.status == "True")
}

async fn next_commands(state: &State, client: &Client) -> anyhow::Result<()> {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    let node = nodes.get(&crate::nodes::FIRST.to_string()).await.context("cannot ask for the node")?;
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let address =
        addresses.into_iter().find(|a| a.type_ == "InternalIP").map(|a| a.address.clone()).unwrap_or_default();
    let kubeconfig = state.kubeconfig();
    terminal::say(&format!(
        "\n{how}\n\n\
         export KUBECONFIG={kubeconfig}\n  \
         bin/virtctl console {NAME}            its console; leave with Ctrl-]\n  \
         bin/virtctl ssh guest@vm/{NAME}       a shell in the guest; the password is guest\n  \
         http://{address}:30080/            its web page\n  \
         kubectl get vm,vmi,pods            what runs\n  \
         bin/virtctl stop {NAME}               shut it down\n  \
         make down                          stop everything",
        how = virtualization_sentence(),
        kubeconfig = kubeconfig.display(),
    ));
    Ok(())
}

/// How the machine runs guests, for people who wonder about their speed.
fn virtualization_sentence() -> String {
    match sys::kvm::verdict() {
        sys::kvm::Verdict::Usable => "Guests run on KVM.".to_owned(),
        sys::kvm::Verdict::Unusable(why) => format!("Guests are emulated: {why}."),
    }
}
