//! Which flags go with which function. Pure.

use std::time::Duration;

use super::Args;
use crate::fault::Fault;

/// A value of `--format`.
pub(super) const RAW: &str = "raw";
const GZIP: &str = "gzip";
/// How long an export is waited for when nobody says.
const READINESS: Duration = Duration::from_secs(120);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Create,
    Delete,
    Download,
}

/// Whether the flags say what is exported.
pub(super) fn has_source(args: &Args) -> bool {
    [&args.vm, &args.snapshot, &args.pvc, &args.vmtemplate].into_iter().any(Option::is_some)
}

/// What is to be done, if the flags go together.
pub(super) fn check(args: &Args) -> Result<Function, Fault> {
    let function = args.function.to_lowercase();
    readiness(args)?;
    match function.as_str() {
        "create" => {
            if !has_source(args) {
                return Err(Fault::usage(
                    "need to specify export kind when attempting to create a VirtualMachineExport [--pvc|--vm|--snapshot]",
                ));
            }
            apart(&downloading(args), "create")?;
            Ok(Function::Create)
        }
        "delete" => {
            if has_source(args) {
                return Err(Fault::usage("should not specify export kind"));
            }
            apart(&downloading(args), "delete")?;
            let others = [
                ("--readiness-timeout", args.readiness_timeout.is_some()),
                ("--labels", !args.labels.is_empty()),
                ("--annotations", !args.annotations.is_empty()),
                ("--ttl", args.ttl.is_some()),
            ];
            apart(&others, "delete")?;
            Ok(Function::Delete)
        }
        "download" => download(args).map(|()| Function::Download),
        other => Err(Fault::usage(format!("invalid function '{other}'")).hint("create, delete and download are")),
    }
}

/// What is said for nothing, in sentences: flags that change nothing beside the others.
pub(super) fn idle(args: &Args) -> Vec<String> {
    let port = args.local_port.as_deref().is_some_and(|port| port != "0");
    let all = [
        ("--include-secret", args.include_secret, "--manifest", args.manifest),
        ("--manifest-output-format", args.manifest_output_format.is_some(), "--manifest", args.manifest),
        ("--local-port", port, "--port-forward", args.port_forward),
    ];
    let idle = all.into_iter().filter(|(_, given, _, needed)| *given && !needed);
    idle.map(|(flag, _, other, _)| format!("the '{flag}' flag changes nothing without '{other}'")).collect()
}

/// Flags that are about a download alone.
fn downloading(args: &Args) -> [(&'static str, bool); 13] {
    [
        ("--manifest", args.manifest),
        ("--include-secret", args.include_secret),
        ("--manifest-output-format", args.manifest_output_format.is_some()),
        ("--output", args.output.is_some()),
        ("--volume", args.volume.is_some()),
        ("--insecure", args.insecure),
        ("--keep-vme", args.keep_vme),
        ("--delete-vme", args.delete_vme),
        ("--port-forward", args.port_forward),
        ("--local-port", args.local_port.as_deref().is_some_and(|port| port != "0")),
        ("--format", args.format.is_some()),
        ("--service-url", args.service_url.is_some()),
        ("--retry", args.retry.is_some_and(|times| times != 0)),
    ]
}

fn apart(flags: &[(&str, bool)], from: &str) -> Result<(), Fault> {
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Fault::usage(format!("the '{flag}' flag is incompatible with '{from}'"))),
        None => Ok(()),
    }
}

fn download(args: &Args) -> Result<(), Fault> {
    let wrong =
        |flag: &str, known: &str| Fault::usage(format!("{flag} is not a valid value, acceptable values are {known}"));
    if args.port_forward {
        local_port(args).map_err(|()| wrong("--local-port", "valid port numbers"))?;
    }
    if args.format.as_deref().is_some_and(|format| format != GZIP && format != RAW) {
        return Err(wrong("--format", "gzip/raw"));
    }
    if args.retry.is_some_and(|times| times < 0) {
        return Err(wrong("--retry", "positive integers"));
    }
    if args.manifest {
        apart(&[("--volume", args.volume.is_some())], "--manifest")?;
        let form = args.manifest_output_format.as_deref().map(str::to_lowercase).unwrap_or_default();
        if !matches!(form.as_str(), "" | "json" | "yaml") {
            return Err(wrong("--manifest-output-format", "json/yaml"));
        }
        apart(&[("--pvc", args.pvc.is_some())], "--manifest")?;
    } else if args.output.as_deref().unwrap_or_default().is_empty() {
        return Err(Fault::usage(
            "warning: Binary output can mess up your terminal. Use '--output -' to output into stdout anyway or consider \
             '--output <FILE>' to save to a file",
        ));
    }
    Ok(())
}

/// The port to listen on.
pub(super) fn local_port(args: &Args) -> Result<u16, ()> {
    args.local_port.as_deref().map_or(Ok(0), |port| port.parse().map_err(drop))
}

/// How long to wait for the export.
pub(super) fn readiness(args: &Args) -> Result<Duration, Fault> {
    let Some(text) = args.readiness_timeout.as_deref() else { return Ok(READINESS) };
    duration(text).ok_or_else(|| {
        Fault::usage(format!("--readiness-timeout {text:?} is not a duration"))
            .hint("write hours, minutes and seconds, such as 1m30s")
    })
}

/// `1h30m`, as Go writes durations.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let seconds = match &rest[digits..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[unit..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(total).ok() }
}

/// `KEY=VALUE` of each; what is not that says nothing.
pub(super) fn pairs(all: &[String]) -> std::collections::BTreeMap<String, String> {
    let split = all.iter().filter_map(|pair| pair.split_once('='));
    split.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(function: &str, change: impl FnOnce(&mut Args)) -> Args {
        let mut args = Args { function: function.to_owned(), name: "e".to_owned(), ..Args::default() };
        change(&mut args);
        args
    }

    #[track_caller]
    fn check(function: &str, change: impl FnOnce(&mut Args), expect: Result<Function, &str>) {
        match (super::check(&args(function, change)), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            (found, expect) => panic!("{found:?}, expected {expect:?}"),
        }
    }

    fn named(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn each_function_has_its_flags() {
        use Function::{Create, Delete, Download};
        check("create", |args| args.vm = named("vm"), Ok(Create));
        check("CREATE", |args| args.pvc = named("a"), Ok(Create));
        check("create", |_| {}, Err("need to specify export kind"));
        let volume = |args: &mut Args| (args.vm, args.volume) = (named("vm"), named("v"));
        check("create", volume, Err("the '--volume' flag is incompatible with 'create'"));
        check("delete", |_| {}, Ok(Delete));
        check("delete", |args| args.vm = named("vm"), Err("should not specify export kind"));
        check(
            "delete",
            |args| args.labels = vec!["a=b".into()],
            Err("the '--labels' flag is incompatible with 'delete'"),
        );
        check("download", |args| args.output = named("f"), Ok(Download));
        check("download", |_| {}, Err("Binary output can mess up your terminal"));
        check("download", |args| args.manifest = true, Ok(Download));
        let manifests = |args: &mut Args| (args.vm, args.manifest) = (named("vm"), true);
        check("create", manifests, Err("the '--manifest' flag is incompatible with 'create'"));
        check("delete", |args| args.ttl = named("1h"), Err("the '--ttl' flag is incompatible with 'delete'"));
        let claim = |args: &mut Args| (args.manifest, args.pvc) = (true, named("a"));
        check("download", claim, Err("the '--pvc' flag is incompatible with '--manifest'"));
        let format = |args: &mut Args| (args.output, args.format) = (named("f"), named("zip"));
        check("download", format, Err("--format is not a valid value, acceptable values are gzip/raw"));
        let port = |args: &mut Args| (args.port_forward, args.local_port) = (true, named("70000"));
        check("download", port, Err("--local-port is not a valid value"));
        check("upload", |_| {}, Err("invalid function 'upload'"));
        let never = |args: &mut Args| (args.vm, args.readiness_timeout) = (named("vm"), named("soon"));
        check("create", never, Err("--readiness-timeout \"soon\" is not a duration"));
    }

    #[test]
    fn flags_without_effect_are_warned_of() {
        let given = |args: &mut Args| (args.include_secret, args.local_port) = (true, named("5410"));
        let found = idle(&args("download", given));
        let expect = [
            "the '--include-secret' flag changes nothing without '--manifest'",
            "the '--local-port' flag changes nothing without '--port-forward'",
        ];
        assert_eq!(found, expect);
        assert!(idle(&args("download", |args| (args.include_secret, args.manifest) = (true, true))).is_empty());
    }

    #[test]
    fn durations_and_pairs() {
        assert_eq!(duration("1h1m1s"), Some(Duration::from_secs(3661)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        for wrong in ["", "5", "m", "5d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        let found = pairs(&["a=b=c".into(), "odd".into(), "d=".into()]);
        assert_eq!(found, [("a".into(), "b=c".into()), ("d".into(), String::new())].into());
    }
}
