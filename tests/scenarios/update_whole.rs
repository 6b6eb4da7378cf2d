//! The whole product goes to its next build and back: every operator, and whatever they have deployed.

use anyhow::{Context, Result, ensure};
use e2e::machine::{holds, phase, uid};
use e2e::wait::{BOOT, until};
use e2e::{Namespace, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::eviction::{BUILD, next_build};
use crate::traffic::{MOVES, Prepared, STAYS, Stream, machines};
use crate::{long, mover, two_nodes};

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("nothing_breaks_while_the_whole_product_is_exchanged_and_back", nothing_breaks)]
}

/// In the environment of who deploys everything else: with which image. What only guards their objects has none.
const TOLD: [&str; 2] = ["COMPONENT_IMAGE", "PROVISIONER_IMAGE"];
const GUARD: &str = "hyperconverged-cluster-webhook";
const IMAGES: [&str; 2] = ["ferrovirt.local/component", "ferrovirt.local/launcher"];
/// Guests are moved with what changes, so screens and consoles connect again.
const STREAMS: [Stream; 6] =
    [Stream::Uploads, Stream::Imports, Stream::Download, Stream::Screens, Stream::Shell, Stream::Requests];

/// Whether this names one of the product's images, and of which build.
fn build(image: &Value) -> Option<(&str, &str)> {
    image.as_str()?.rsplit_once(':').filter(|(name, _)| IMAGES.contains(name))
}

/// Whether nobody else deploys this Deployment.
fn is_operator(deployment: &Value) -> bool {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
    let mut told =
        containers.into_iter().flatten().flat_map(|container| container["env"].as_array().into_iter().flatten());
    deployment["metadata"]["name"] == GUARD
        || told.any(|variable| variable["name"].as_str().is_some_and(|name| TOLD.contains(&name)))
}

/// Gives every operator the images of another build, as whoever installs that build does.
fn exchange(to: &str) -> Result<()> {
    let all = product::get(&["deployments"])?;
    for found in all["items"].as_array().into_iter().flatten().filter(|found| is_operator(found)) {
        let operator = found["metadata"]["name"].as_str().unwrap_or_default();
        let mut containers = found["spec"]["template"]["spec"]["containers"].clone();
        for container in containers.as_array_mut().into_iter().flatten() {
            let renamed = |image: &Value| build(image).map(|(name, _)| json!(format!("{name}:{to}")));
            if let Some(image) = renamed(&container["image"]) {
                container["image"] = image;
            }
            for variable in container["env"].as_array_mut().into_iter().flatten() {
                if let Some(image) = renamed(&variable["value"]) {
                    variable["value"] = image;
                }
            }
        }
        let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } }).to_string();
        product::kubectl(&["patch", "deployment", operator, "--type=strategic", "-p", &patch])?;
    }
    until(&format!("everything to be of {to}"), BOOT, || {
        let pods = product::get(&["pods"])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let others: Vec<&str> = pods
            .iter()
            .filter(|pod| build(&pod["spec"]["containers"][0]["image"]).is_some_and(|(_, build)| build != to))
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        ensure!(others.is_empty(), "{others:?} are not");
        let object = product::get(&["hyperconverged", "kubevirt-hyperconverged"])?;
        let settled = holds(&object, "Available") && !holds(&object, "Progressing") && !holds(&object, "Degraded");
        ensure!(settled, "HyperConverged is not settled: {}", object["status"]["conditions"]);
        let ready = pods.iter().all(|pod| holds(pod, "Ready"));
        Ok(ready.then_some(()))
    })
}

/// Waits until both guests were moved into launchers of that build.
fn moved(space: &Namespace, to: &str) -> Result<()> {
    let image = format!("ferrovirt.local/launcher:{to}");
    for name in [MOVES, STAYS] {
        space.wait("vmi", name, "ran in the other launcher", |vmi| {
            let moving = vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_string();
            phase(vmi) == "Running" && vmi["status"]["launcherContainerImageVersion"] == image.as_str() && !moving
        })?;
    }
    Ok(())
}

fn instances(space: &Namespace) -> Result<Vec<String>> {
    [MOVES, STAYS].iter().map(|name| Ok(uid(&space.get("vmi", name)?).to_owned())).collect()
}

fn nothing_breaks() -> Result<()> {
    // Every guest that is there is moved.
    mover::shut_down();
    two_nodes::ready()?;
    next_build()?;
    let space = Namespace::new("whole-update")?;
    machines(&space)?;
    let prepared = Prepared::new(&space)?;
    let before = instances(&space)?;
    prepared.during(STREAMS, |_| {
        let forth = exchange("next").and_then(|()| moved(&space, "next"));
        // Whatever happened, the cluster is left as it was found.
        let back = exchange(BUILD).and_then(|()| moved(&space, BUILD));
        forth.context("to the next build")?;
        back.context("back to the first build")
    })?;
    prepared.waited()?;
    ensure!(instances(&space)? == before, "a guest was started anew");
    Ok(())
}
