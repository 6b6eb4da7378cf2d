//! The product's own CNI plugins on a node, which its kubelet takes before those of the machine.

use std::process::Command;

use anyhow::Context;
use kubelet::node;

use crate::terminal;

/// What lies beside this program.
const PROGRAM: &str = "ferrovirt-cni";

/// Puts the plugins where the kubelet of the node looks first. They are run for each pod anew, so a node that runs may get them as well.
pub(crate) fn lay_out(node: &node::Config) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = own.with_file_name(PROGRAM);
    let directory = node.plugins();
    if !program.is_file() {
        let what = "networks beside the pods' own are made by this machine's CNI plugins (`make build` makes others)";
        terminal::say(&format!("{} is missing: {what}", program.display()));
        return Ok(());
    }
    let mut command = Command::new(&program);
    let output = command.arg("install").arg(&directory).args(["bridge", "tuning", "macvtap"]).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        anyhow::bail!("the CNI plugins of {} were not installed: {words}", node.name);
    }
    Ok(())
}
