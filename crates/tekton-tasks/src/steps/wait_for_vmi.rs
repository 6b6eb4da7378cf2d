//! wait-for-vmi-status: until fields of an instance are as they are to be.

use std::time::Duration;

use kube::api::DynamicObject;
use serde_json::Value;

use super::selector::Selector;
use crate::cluster::{VMI, what};
use crate::words::given;
use crate::{Cluster, Error};

/// A TaskRun ends sooner, which has a timeout.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Params of wait-for-vmi-status.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The instance
    #[arg(long)]
    vmi_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    vmi_namespace: String,
    /// When to succeed
    #[arg(long, default_value = "")]
    success_condition: String,
    /// When to fail
    #[arg(long, default_value = "")]
    failure_condition: String,
}

/// Waits until one of the conditions holds. An instance that is not there yet is waited for.
///
/// # Errors
/// When a condition cannot be read, or the one to fail holds.
pub async fn run(cluster: &Cluster, args: &Args) -> Result<(), Error> {
    let read = |name: &'static str, text: &str| {
        let text = given(text);
        text.map(|text| Selector::parse(text).map_err(|error| Error::param(name, error))).transpose()
    };
    let success = read("successCondition", &args.success_condition)?;
    let failure = read("failureCondition", &args.failure_condition)?;
    if success.is_none() && failure.is_none() {
        return Err(Error::param("successCondition", "one of successCondition and failureCondition has to be given"));
    }
    let namespace = given(&args.vmi_namespace).unwrap_or(&cluster.namespace);
    let holds = |selector: &Option<Selector>, object: &DynamicObject| {
        let object: Value = serde_json::to_value(object).unwrap_or_default();
        selector.as_ref().is_some_and(|selector| selector.holds(&object))
    };
    let ended = |object: Option<&DynamicObject>| {
        object.is_some_and(|object| holds(&failure, object) || holds(&success, object))
    };
    let name = what(VMI, namespace, &args.vmi_name);
    let late = format!("{name}: neither condition held");
    match cluster.until(VMI, namespace, &args.vmi_name, ended, PATIENCE, late).await? {
        Some(object) if holds(&failure, &object) => {
            Err(Error::Failed(format!("{name}: the failure condition {:?} holds", args.failure_condition)))
        }
        _ => Ok(()),
    }
}
