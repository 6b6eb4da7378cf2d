//! Tasks of Tekton for virtual machines: what each declares, and the program of their steps.
//!
//! ```text
//! Task (manifests, pure) --params--> step: `tekton-task NAME --param=VALUE ...` --> objects, files, results, exit code
//! ```
//!
//! A step ends with 0, with 1 and one sentence that says why, or with the code of the command that it ran in a guest.

mod cluster;
mod error;
pub mod lists;
pub mod manifests;
pub mod steps;
mod words;

pub use cluster::Cluster;
pub use error::Error;
use steps::{
    create_vm, data_object, disk_tools, disk_uploader, execute, iso, prepare_windows, ssh_keys, templates, wait_for_vmi,
};

/// The program's name, and its command.
pub const PROGRAM: &str = "tekton-task";

/// Command line of a step.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    step: Step,
}

/// The steps. Those without words about a cluster need none.
#[derive(Clone, Debug, clap::Subcommand)]
enum Step {
    /// Create a virtual machine of a manifest, or of options of `virtctl create vm`
    CreateVmFromManifest(create_vm::FromManifest),
    /// Create a virtual machine of a template
    CreateVmFromTemplate(create_vm::FromTemplate),
    /// Copy a template
    CopyTemplate(templates::Copy),
    /// Change a template, or delete it
    ModifyVmTemplate(Box<templates::Modify>),
    /// Create, replace or delete a DataVolume or a DataSource
    ModifyDataObject(data_object::Args),
    /// Generate a pair of keys for SSH, in Secrets
    GenerateSshKeys(ssh_keys::Args),
    /// Run a command or a script in a guest
    ExecuteInVm(execute::Execute),
    /// The same, and stop or delete the machine afterwards
    CleanupVm(execute::Cleanup),
    /// Wait until fields of a machine's instance are as they are to be
    WaitForVmiStatus(wait_for_vmi::Args),
    /// Customize a disk with virt-customize
    DiskVirtCustomize(disk_tools::Args),
    /// Seal a disk with virt-sysprep
    DiskVirtSysprep(disk_tools::Args),
    /// Unpack an installation medium of Windows and take the question for a key out of its boot
    ModifyIsoFile(iso::Modify),
    /// Pack it again
    CreateIsoFile(iso::Create),
    /// Write it to its disk
    ConvertIsoFile(iso::Convert),
    /// Send a disk to a registry, as a containerDisk
    DiskUploader(disk_uploader::Args),
    /// Look at what a Pipeline of Windows is told
    PrepareWindows(prepare_windows::Args),
}

/// Runs the step; the exit code.
///
/// # Errors
/// When it cannot do what it is asked, in a sentence for its user.
pub async fn run(args: Args) -> Result<u8, Error> {
    match args.step {
        Step::DiskVirtCustomize(args) => disk_tools::run(disk_tools::CUSTOMIZE, &args).await,
        Step::DiskVirtSysprep(args) => disk_tools::run(disk_tools::SYSPREP, &args).await,
        Step::ModifyIsoFile(args) => iso::modify(&args).await,
        Step::CreateIsoFile(args) => iso::create(&args).await,
        Step::ConvertIsoFile(args) => iso::convert(&args).await,
        _ => run_on(&Cluster::connect().await?, args).await,
    }
}

/// Runs a step that is about a cluster, on this one.
///
/// # Errors
/// When it cannot do what it is asked, or is about none.
pub async fn run_on(cluster: &Cluster, args: Args) -> Result<u8, Error> {
    let done = match args.step {
        Step::CreateVmFromManifest(args) => create_vm::from_manifest(cluster, &args).await,
        Step::CreateVmFromTemplate(args) => create_vm::from_template(cluster, &args).await,
        Step::CopyTemplate(args) => templates::copy(cluster, &args).await,
        Step::ModifyVmTemplate(args) => templates::modify(cluster, &args).await,
        Step::ModifyDataObject(args) => data_object::run(cluster, &args).await,
        Step::GenerateSshKeys(args) => ssh_keys::run(cluster, &args).await,
        Step::ExecuteInVm(args) => return execute::execute(cluster, &args).await,
        Step::CleanupVm(args) => return execute::cleanup(cluster, &args).await,
        Step::WaitForVmiStatus(args) => wait_for_vmi::run(cluster, &args).await,
        Step::DiskUploader(args) => disk_uploader::run(cluster, &args).await,
        Step::PrepareWindows(args) => prepare_windows::run(cluster, &args).await,
        Step::DiskVirtCustomize(_)
        | Step::DiskVirtSysprep(_)
        | Step::ModifyIsoFile(_)
        | Step::CreateIsoFile(_)
        | Step::ConvertIsoFile(_) => Err(Error::Failed("the step is about no cluster".to_owned())),
    };
    done.map(|()| 0)
}
