//! `virtctl ssh`: the local OpenSSH client, which reaches the machine through `virtctl port-forward --stdio`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::target::Target;

/// Open an SSH connection to a virtual machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl ssh root@vm/demo                   as root
  virtctl ssh jdoe@vmi/demo/other            a machine in namespace other
  virtctl ssh root@vm/demo -c 'uname -r'     run one command; its exit code is passed on")]
pub(crate) struct Args {
    /// The machine: [USER@]vm/NAME[/NAMESPACE] or vmi/NAME.
    #[arg(value_name = "TARGET")]
    target: String,
    #[command(flatten)]
    options: Options,
    /// Command to run instead of a shell.
    #[arg(long, short, value_name = "COMMAND", allow_hyphen_values = true)]
    command: Option<String>,
}

/// What ssh and scp have in common.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Options {
    /// User to log in as.
    #[arg(long, short = 'l', value_name = "USER")]
    pub(super) username: Option<String>,
    /// File with the private key to log in with.
    #[arg(long, short, value_name = "FILE")]
    pub(super) identity_file: Option<PathBuf>,
    /// File with the keys of known machines [default: ~/.ssh/kubevirt_known_hosts].
    #[arg(long, value_name = "FILE")]
    pub(super) known_hosts: Option<PathBuf>,
    /// Further options of the local client, e.g. "-o StrictHostKeyChecking=no"; may be repeated.
    #[arg(long, short = 't', value_name = "OPTION", allow_hyphen_values = true)]
    pub(super) local_ssh_opts: Vec<String>,
    /// Port of the machine.
    #[arg(long, short, default_value_t = 22)]
    pub(super) port: u16,
}

/// Where this program is, who runs it and where they live.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    program: PathBuf,
    user: Option<String>,
    home: Option<PathBuf>,
}

impl Surroundings {
    pub(super) fn here() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("virtctl")),
            user: variable("USER").or_else(|| variable("LOGNAME")),
            home: variable("HOME").map(PathBuf::from),
        }
    }
}

#[cfg(test)]
impl Surroundings {
    pub(super) fn of(program: &str, user: &str, home: &str) -> Self {
        Self { program: program.into(), user: Some(user.to_owned()), home: Some(home.into()) }
    }
}

/// Quotes a word for the shell that runs a ProxyCommand, and `%` for ssh itself.
fn quoted(word: &str) -> String {
    let word = word.replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The options of this command that the port-forward must have too.
fn passed_on(globals: &Globals) -> Vec<String> {
    let text = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{name}={value}"));
    let file = globals.kubeconfig.as_ref().map(|path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        format!("--kubeconfig={}", path.display())
    });
    let mut options: Vec<String> = [
        file,
        text("context", &globals.context),
        text("cluster", &globals.cluster),
        text("user", &globals.user),
        text("server", &globals.server),
        text("token", &globals.token),
        text("certificate-authority", &globals.certificate_authority),
        text("client-certificate", &globals.client_certificate),
        text("client-key", &globals.client_key),
        text("tls-server-name", &globals.tls_server_name),
        text("as", &globals.act_as),
        text("as-uid", &globals.act_as_uid),
    ]
    .into_iter()
    .flatten()
    .collect();
    options.extend(globals.insecure_skip_tls_verify.map(|skip| format!("--insecure-skip-tls-verify={skip}")));
    options.extend(globals.act_as_group.iter().map(|group| format!("--as-group={group}")));
    options
}

/// The machine's name as ssh sees it, and so as known_hosts has it.
pub(super) fn host(target: &Target, namespace: &str) -> String {
    format!("{}.{}.{namespace}", target.kind.short(), target.name)
}

/// What ssh and scp are told alike: the way through the cluster, the key, the known hosts, and what the user adds.
pub(super) fn arguments(
    globals: &Globals,
    options: &Options,
    here: &Surroundings,
    target: &Target,
    namespace: &str,
) -> Vec<OsString> {
    let mut words =
        vec![here.program.to_string_lossy().into_owned(), "port-forward".to_owned(), "--stdio=true".to_owned()];
    words.extend(passed_on(globals));
    words.push(format!("{}/{}/{namespace}", target.kind.short(), target.name));
    words.push(options.port.to_string());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut arguments = vec!["-o".into(), format!("ProxyCommand={}", words.join(" ")).into()];
    // The first value of an option counts, so the user's come before ours.
    arguments.extend(options.local_ssh_opts.iter().flat_map(|text| text.split_whitespace()).map(OsString::from));
    let standard = || here.home.as_ref().map(|home| home.join(".ssh/kubevirt_known_hosts"));
    if let Some(file) = options.known_hosts.clone().or_else(standard) {
        arguments.extend(["-o".into(), format!("UserKnownHostsFile={}", file.display()).into()]);
    }
    if let Some(file) = &options.identity_file {
        arguments.extend(["-i".into(), file.clone().into_os_string()]);
    }
    arguments
}

/// Who to log in as: named with the machine, by the option, or whoever runs this.
pub(super) fn user(named: Option<String>, options: &Options, here: &Surroundings) -> Option<String> {
    named.or_else(|| options.username.clone()).or_else(|| here.user.clone())
}

/// Runs the local client and passes its exit code on.
pub(super) async fn local(program: &str, arguments: Vec<OsString>) -> Outcome {
    let missing = |error: std::io::Error| {
        let fault = Fault::new(format!("cannot run {program}")).because(&error);
        match error.kind() {
            std::io::ErrorKind::NotFound => fault.hint("install the OpenSSH client: apt-get install openssh-client"),
            _ => fault,
        }
    };
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(missing)?;
    // Ctrl-C is for the client, which shares our terminal; we stay to pass its exit code on.
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).map_err(missing)?;
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(missing)?;
                let by_signal = std::os::unix::process::ExitStatusExt::signal(&status).map(|number| 128 + number);
                let code = status.code().or(by_signal).unwrap_or(255);
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(255)));
            }
            _ = interrupt.recv() => {}
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    let (named, target) = Target::parse_with_user(&args.target)?;
    let namespace = namespace(globals, &target).await?;
    let here = Surroundings::here();
    check_identity(args.options.identity_file.as_deref())?;
    let mut arguments = arguments(globals, &args.options, &here, &target, &namespace);
    let host = host(&target, &namespace);
    arguments.push(user(named, &args.options, &here).map_or(host.clone(), |user| format!("{user}@{host}")).into());
    arguments.extend(args.command.as_ref().map(OsString::from));
    local("ssh", arguments).await
}

/// The namespace of the machine: named with it, or the context's.
pub(super) async fn namespace(globals: &Globals, target: &Target) -> Result<String, Fault> {
    match &target.namespace {
        Some(namespace) => Ok(namespace.clone()),
        None => Ok(globals.cluster().await?.namespace),
    }
}

/// A key that is not there is said here, since ssh would go on without it.
pub(super) fn check_identity(file: Option<&Path>) -> Result<(), Fault> {
    match file.map(|path| (path, std::fs::File::open(path))) {
        Some((path, Err(error))) => Err(Fault::new(format!("cannot read the key {}", path.display())).because(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Surroundings {
        Surroundings::of("/opt/my tools/virtctl", "me", "/home/me")
    }

    #[test]
    fn the_way_through_the_cluster() {
        let globals = Globals {
            kubeconfig: Some("/k".into()),
            context: Some("it's".to_owned()),
            act_as: Some("system:serviceaccount:a:b".to_owned()),
            ..Globals::default()
        };
        let options = Options {
            identity_file: Some("/id".into()),
            local_ssh_opts: vec!["-o StrictHostKeyChecking=no".to_owned(), "-v".to_owned()],
            port: 2222,
            ..Options::default()
        };
        let target = Target::parse("vm/demo").unwrap();
        let words = arguments(&globals, &options, &here(), &target, "default");
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        insta::assert_snapshot!(words.join("\n"), @r"
        -o
        ProxyCommand='/opt/my tools/virtctl' port-forward --stdio=true --kubeconfig=/k '--context=it'\''s' --as=system:serviceaccount:a:b vm/demo/default 2222
        -o
        StrictHostKeyChecking=no
        -v
        -o
        UserKnownHostsFile=/home/me/.ssh/kubevirt_known_hosts
        -i
        /id
        ");
    }

    #[test]
    fn the_user_is_of_the_target_then_the_flag_then_the_local_one() {
        let options = Options { username: Some("jane".to_owned()), ..Options::default() };
        assert_eq!(user(Some("root".to_owned()), &options, &here()).as_deref(), Some("root"));
        assert_eq!(user(None, &options, &here()).as_deref(), Some("jane"));
        assert_eq!(user(None, &Options::default(), &here()).as_deref(), Some("me"));
    }
}
