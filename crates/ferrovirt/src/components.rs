//! The product's components as programs of the multicall binary: arguments, log, runtime, then the component's own `run`.

use std::ffi::OsString;
use std::future::Future;

use anyhow::Context;
use clap::Args;
use kit::operator::Process;

use crate::arguments::Wrapped;
use crate::failure::{Ended, parse};
use crate::{at_rest, csi_controller, terminal};

/// Components wait more than they compute: two threads serve, and each thread saved is memory saved in every pod.
fn serve<A, F, E>(words: Vec<OsString>, run: impl FnOnce(A) -> F) -> anyhow::Result<()>
where
    A: Args,
    F: Future<Output = Result<(), E>>,
    E: Into<anyhow::Error>,
{
    let Some(arguments) = parse::<Wrapped<A>>(words)? else { return Ok(()) };
    terminal::log("info");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(at_rest::run(run(arguments.component))).map_err(Into::into)
}

/// `operators`
pub(crate) fn operators(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, crate::operators::run)
}

/// `hyperconverged-cluster-operator`
pub(crate) fn hco_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| hco::operator::run(args, Process::default()))
}

/// `hyperconverged-cluster-webhook`
pub(crate) fn hco_webhook(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hco::webhook::run)
}

/// `virt-network-resources-injector`
pub(crate) fn network_resources_injector(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hco::injector::run)
}

/// `cluster-network-addons-operator`
pub(crate) fn network_addons_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| cnao::operator::run(args, Process::default()))
}

/// `multus-daemon`
pub(crate) fn multus_daemon(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::multus::run)
}

/// `bridge-marker`
pub(crate) fn bridge_marker(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::bridge_marker::run)
}

/// `kubemacpool`
pub(crate) fn kubemacpool(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::kubemacpool::run)
}

/// `kubevirt-ipam-controller`
pub(crate) fn ipam_controller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::ipam::run)
}

/// `hyperconverged-cluster-cli-download`
pub(crate) fn cli_download(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hco::downloads::run)
}

/// `macvtap-device-plugin`
pub(crate) fn macvtap_device_plugin(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::macvtap::run)
}

/// `secondary-dns`
pub(crate) fn secondary_dns(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cnao::secondary_dns::run)
}

/// `tekton-task`; its exit code is that of what it ran
pub(crate) fn tekton_task(words: Vec<OsString>) -> anyhow::Result<()> {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words = tekton_tasks::lists::expand(words).map_err(anyhow::Error::msg)?;
    let words = words.into_iter().map(OsString::from).collect();
    let Some(arguments) = parse::<Wrapped<tekton_tasks::Args>>(words)? else { return Ok(()) };
    terminal::log("info");
    let done = crate::cluster::runtime()?.block_on(tekton_tasks::run(arguments.component));
    match done {
        Ok(0) => Ok(()),
        Ok(code) => Err(Ended(code).into()),
        // The code is that of a command, and what failed beside it is told.
        Err(error) if error.code() != 1 => {
            terminal::complain(&format!("error: {}", kit::Chain(&error)));
            Err(Ended(error.code()).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// `ssp-operator`
pub(crate) fn ssp_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| ssp::operator::run(args, Process::default()))
}

/// `template-validator`
pub(crate) fn template_validator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, ssp::validator::run)
}

/// `vm-console-proxy`
pub(crate) fn vm_console_proxy(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, ssp::console_proxy::run)
}

/// `virt-operator`
pub(crate) fn virt_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| virt_operator::run(args, Process::default()))
}

/// `virt-api`
pub(crate) fn virt_api(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_api::run)
}

/// `virt-controller`
pub(crate) fn virt_controller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_controller::run)
}

/// `virt-exportserver`
pub(crate) fn virt_exportserver(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_export::server::run)
}

/// `virt-exportproxy`
pub(crate) fn virt_exportproxy(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_export::proxy::run)
}

/// `hostpath-csi`
pub(crate) fn hostpath_csi(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hpp::run)
}

/// `cdi-operator`
pub(crate) fn cdi_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| cdi::operator::run(args, Process::default()))
}

/// `cdi-apiserver`
pub(crate) fn cdi_apiserver(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::apiserver::run)
}

/// `hostpath-provisioner-operator`
pub(crate) fn hostpath_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, |args| hpp::operator::run(args, Process::default()))
}

/// `hostpath-provisioner`, the legacy one
pub(crate) fn hostpath_legacy(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hpp::legacy::run)
}

/// `csi-controller`
pub(crate) fn csi_controller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, csi_controller::run)
}

/// `hostpath-pool`
pub(crate) fn hostpath_pool(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hpp::mounter::run)
}

/// `virt-handler`
pub(crate) fn virt_handler(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_handler::run)
}

/// `cdi-importer`
pub(crate) fn cdi_importer(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::importer::run)
}

/// `cdi-poller`
pub(crate) fn cdi_poller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::poller::run)
}

/// `ovirt-populator`
pub(crate) fn ovirt_populator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::importer::populators::ovirt)
}

/// `openstack-populator`
pub(crate) fn openstack_populator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::importer::populators::openstack)
}

/// `cdi-uploadserver`
pub(crate) fn cdi_uploadserver(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::uploadserver::run)
}

/// `cdi-cloner`
pub(crate) fn cdi_cloner(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::cloner::run)
}

/// `cdi-uploadproxy`
pub(crate) fn cdi_uploadproxy(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::uploadproxy::run)
}

/// `cdi-controller`
pub(crate) fn cdi_controller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, cdi::controller::run)
}
