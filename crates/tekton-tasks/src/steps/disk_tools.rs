//! disk-virt-customize and disk-virt-sysprep: tools of libguestfs, which an image of their own has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::program;
use crate::Error;
use crate::words::{given, truth};

/// A TaskRun ends sooner, which has a timeout.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// The tools.
pub const CUSTOMIZE: &str = "virt-customize";
/// The other one.
pub const SYSPREP: &str = "virt-sysprep";

/// Params of both.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The disk
    #[arg(long, default_value = "/mnt/targetpvc/disk.img")]
    disk: PathBuf,
    /// Commands of the tool, one a line
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    virt_commands: String,
    /// Whether libguestfs says all it does
    #[arg(long, default_value = "false")]
    verbose: String,
    /// Further options of the tool
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    additional_virt_options: String,
}

/// Runs the tool; its exit code.
///
/// # Errors
/// When the disk is not there, or the tool is not.
pub async fn run(tool: &'static str, args: &Args) -> Result<u8, Error> {
    if !args.disk.exists() {
        return Err(Error::Failed(format!("there is no {}: the claim holds no disk", args.disk.display())));
    }
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", Path::new("/tmp")))?;
    let commands = dir.path().join("commands");
    std::fs::write(&commands, format!("{}\n", args.virt_commands.trim_end()))
        .map_err(Error::file("write", &commands))?;
    let words = words(args, &commands)?;
    program::run(tool, &words, &variables(truth("verbose", &args.verbose)?), PATIENCE).await
}

fn words(args: &Args, commands: &Path) -> Result<Vec<String>, Error> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    // Disks of claims are raw. What a guest wrote at the head of its own must not be taken for a format that names other files.
    let mut words = vec!["--format".to_owned(), "raw".to_owned(), "--add".to_owned(), text(&args.disk)];
    if given(&args.virt_commands).is_some() {
        words.extend(["--commands-from-file".to_owned(), text(commands)]);
    }
    if truth("verbose", &args.verbose)? {
        words.extend(["--verbose", "-x"].map(str::to_owned));
    }
    let more = shlex::split(&args.additional_virt_options)
        .ok_or_else(|| Error::param("additionalVirtOptions", "a quotation mark is not closed"))?;
    words.extend(more);
    Ok(words)
}

/// libguestfs starts QEMU itself.
pub(super) fn variables(verbose: bool) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("LIBGUESTFS_BACKEND", "direct")];
    if verbose {
        all.extend([("LIBGUESTFS_DEBUG", "1"), ("LIBGUESTFS_TRACE", "1")]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_told_what_params_say() {
        let of = |commands: &str, verbose: &str, more: &str| {
            let args = Args {
                disk: "/d".into(),
                virt_commands: commands.to_owned(),
                verbose: verbose.to_owned(),
                additional_virt_options: more.to_owned(),
            };
            words(&args, Path::new("/c")).map(|words| words.join(" "))
        };
        assert_eq!(of("install vim", "", "").unwrap(), "--format raw --add /d --commands-from-file /c");
        assert_eq!(of("", "true", "--memsize '2048'").unwrap(), "--format raw --add /d --verbose -x --memsize 2048");
        assert!(of("", "", "'").is_err() && of("", "maybe", "").is_err());
    }
}
