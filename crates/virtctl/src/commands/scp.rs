//! `virtctl scp`: the local OpenSSH copy, through the cluster as `virtctl ssh`.

use std::ffi::OsString;
use std::path::Path;

use super::ssh::{self, Options, Surroundings};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::target::Target;

/// Copy files from or to a virtual machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl scp notes.txt root@vm/demo:/tmp/      to the machine
  virtctl scp -r root@vmi/demo/other:/var/log . from a machine in namespace other")]
pub(crate) struct Args {
    /// What to copy: a local path, or [USER@]vm/NAME[/NAMESPACE]:PATH.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Where to: a local path, or [USER@]vm/NAME[/NAMESPACE]:PATH.
    #[arg(value_name = "DESTINATION")]
    destination: String,
    #[command(flatten)]
    options: Options,
    /// Copy directories with what is in them.
    #[arg(long, short, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    recursive: bool,
    /// Keep times and modes.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    preserve: bool,
}

/// One end of a copy.
#[derive(Debug, PartialEq)]
enum End {
    Local(String),
    Remote { user: Option<String>, target: Target, path: String },
}

fn parse(text: &str) -> Result<End, Fault> {
    let explicit = text.starts_with(['/', '.', '~']);
    match text.split_once(':') {
        Some((machine, path)) if !explicit => {
            let (user, target) = Target::parse_with_user(machine)?;
            Ok(End::Remote { user, target, path: path.to_owned() })
        }
        _ => Ok(End::Local(text.to_owned())),
    }
}

/// The machine of the two ends: exactly one is.
fn machine<'a>(source: &'a End, destination: &'a End) -> Result<&'a Target, Fault> {
    match (source, destination) {
        (End::Remote { target, .. }, End::Local(_)) | (End::Local(_), End::Remote { target, .. }) => Ok(target),
        (End::Local(_), End::Local(_)) => {
            Err(Fault::usage("neither end names a machine").hint("write a machine's path as vm/NAME:PATH"))
        }
        _ => Err(Fault::usage("both ends name a machine").because("copies go from or to this computer")),
    }
}

fn spelled(end: &End, options: &Options, here: &Surroundings, namespace: &str) -> OsString {
    match end {
        // A colon in a local name would make scp take it for a host.
        End::Local(path) if path.contains(':') && Path::new(path).is_relative() && !path.starts_with('.') => {
            format!("./{path}").into()
        }
        End::Local(path) => path.into(),
        End::Remote { user, target, path } => {
            let host = ssh::host(target, namespace);
            match ssh::user(user.clone(), options, here) {
                Some(user) => format!("{user}@{host}:{path}").into(),
                None => format!("{host}:{path}").into(),
            }
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    let (source, destination) = (parse(&args.source)?, parse(&args.destination)?);
    let target = machine(&source, &destination)?;
    let namespace = ssh::namespace(globals, target).await?;
    let here = Surroundings::here();
    ssh::check_identity(args.options.identity_file.as_deref())?;
    let mut arguments = ssh::arguments(globals, &args.options, &here, target, &namespace);
    arguments.extend(args.recursive.then(|| "-r".into()));
    arguments.extend(args.preserve.then(|| "-p".into()));
    arguments.extend([&source, &destination].map(|end| spelled(end, &args.options, &here, &namespace)));
    ssh::local("scp", arguments).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, destination: &str, expect: Result<(&str, &str), &str>) {
        let here = Surroundings::of("virtctl", "me", "/home/me");
        let spell = |end: &End| spelled(end, &Options::default(), &here, "ns").to_string_lossy().into_owned();
        let found = parse(source).and_then(|source| {
            let destination = parse(destination)?;
            machine(&source, &destination)?;
            Ok((spell(&source), spell(&destination)))
        });
        match (&found, expect) {
            (Ok((a, b)), Ok(expect)) => assert_eq!((a.as_str(), b.as_str()), expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ends() {
        check("a.txt", "vmi/demo:/tmp", Ok(("a.txt", "me@vmi.demo.ns:/tmp")));
        check("root@vm/demo:b", ".", Ok(("root@vm.demo.ns:b", ".")));
        check("./odd:name", "demo:", Ok(("./odd:name", "me@vmi.demo.ns:")));
        check("a", "b", Err("neither end names a machine"));
        check("vm/a:x", "vm/b:y", Err("both ends name a machine"));
        check("pod/a:x", "y", Err("neither vm nor vmi"));
    }
}
