//! `virtctl vnc`: a local port to the machine's screen and a viewer on it, or a picture of the screen.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use http::Request;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::request;
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome, chain};
use crate::stream::Broken;
use crate::target::Kind;
use crate::terminal::Ending;
use crate::{output, stream};

/// How long a viewer that was started may take to connect.
const CONNECT: Duration = Duration::from_secs(60);
/// Between two tries to open a screen again.
const AGAIN: Duration = Duration::from_millis(300);

/// Open the screen of a virtual machine instance.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VMI", required = true)]
    name: Option<String>,
    /// Start no viewer; print the local port viewers can connect to.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    proxy_only: bool,
    /// Local port; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Local address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Kind of the viewer at --vnc-path.
    #[arg(long, value_name = "KIND")]
    vnc_type: Option<Viewer>,
    /// Path of the viewer.
    #[arg(long, value_name = "FILE", requires = "vnc_type")]
    vnc_path: Option<PathBuf>,
    /// Do not throw out somebody who looks at the screen already.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    preserve_session: bool,
    #[command(subcommand)]
    instead: Option<Instead>,
}

#[derive(Debug, clap::Subcommand)]
enum Instead {
    /// Save a picture of the screen.
    Screenshot(Screenshot),
}

#[derive(Debug, clap::Args)]
struct Screenshot {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
    /// File to write the PNG to; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Move the pointer first, which wakes a screen saver. Servers of this version refuse it.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    move_cursor: bool,
}

/// The viewers whose command lines are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Viewer {
    #[value(name = "remote-viewer")]
    Remote,
    Tiger,
    Real,
    Chicken,
}

impl Viewer {
    /// In the order of preference.
    const ALL: [Self; 4] = [Self::Remote, Self::Tiger, Self::Real, Self::Chicken];

    /// Its program's name on PATH.
    fn program(self) -> &'static str {
        match self {
            Self::Remote => "remote-viewer",
            Self::Tiger => "vncviewer",
            Self::Real => "realvnc-vncviewer",
            Self::Chicken => "chicken",
        }
    }

    fn arguments(self, address: SocketAddr) -> Vec<String> {
        match self {
            Self::Remote => vec![format!("vnc://{address}")],
            // Two colons: a port, not a display.
            Self::Tiger => vec![format!("{}::{}", address.ip(), address.port())],
            Self::Real => {
                vec![address.to_string(), "-WarnUnencrypted=0".into(), "-Shared=0".into(), "-ShareFiles=0".into()]
            }
            Self::Chicken => vec![address.to_string()],
        }
    }
}

fn find(viewer: Option<Viewer>, path: Option<PathBuf>, on_path: impl Fn(&str) -> bool) -> Option<(Viewer, PathBuf)> {
    let named = |viewer: Viewer| (viewer, PathBuf::from(viewer.program()));
    match (viewer, path) {
        (Some(viewer), Some(path)) => Some((viewer, path)),
        (Some(viewer), None) => on_path(viewer.program()).then(|| named(viewer)),
        (None, _) => Viewer::ALL.into_iter().find(|viewer| on_path(viewer.program())).map(named),
    }
}

fn on_path(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let cluster = globals.cluster().await?;
    match args.instead {
        Some(Instead::Screenshot(args)) => screenshot(&cluster, &args).await,
        None => show(&cluster, args).await,
    }
}

async fn show(cluster: &Cluster, args: Args) -> Outcome {
    let (namespace, name) = request::named(cluster, Kind::Vmi, &args.name.unwrap_or_default())?;
    let viewer = find(args.vnc_type, args.vnc_path, on_path);
    if viewer.is_none() && !args.proxy_only {
        return Err(Fault::new("cannot open a viewer")
            .because("neither remote-viewer nor vncviewer is installed")
            .hint("apt-get install virt-viewer, or use --proxy-only and any viewer"));
    }
    let mut path = stream::path(Kind::Vmi, &namespace, &name, "vnc");
    if args.preserve_session {
        path.push_str("?preserveSession=true");
    }
    let what = format!("cannot open the screen of {namespace}/{name}");
    let mut socket = stream::open(&cluster.client, &path, &what).await?;
    let local = SocketAddr::new(args.address, args.port);
    let cannot = |error| Fault::new(format!("cannot listen on {local}")).because(error);
    let listener = TcpListener::bind(local).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut ending = Ending::watch().map_err(|error| Fault::new("cannot watch signals").because(error))?;
    if args.proxy_only {
        output::say(&serde_json::json!({ "port": address.port() }).to_string())?;
    }
    loop {
        let serving = async {
            let accepted = if args.proxy_only {
                listener.accept().await
            } else {
                let accepted = timeout(CONNECT, listener.accept()).await;
                accepted.map_err(|_| Fault::new("no viewer connected").because("a minute passed"))?
            };
            let (mut stream, _) = accepted.map_err(cannot)?;
            let (reader, writer) = stream.split();
            match stream::splice(socket, reader, writer).await {
                Ok(farewell) => Ok(stream::says_moved(&farewell)),
                Err(Broken::Far(_)) => Ok(true),
                Err(broken) => Err(Fault::new("the connection broke").because(broken)),
            }
        };
        let viewing = view(viewer.as_ref().filter(|_| !args.proxy_only), address);
        let goes_on = tokio::select! {
            served = serving => served?,
            viewed = viewing => return viewed.map(|()| ExitCode::SUCCESS),
            code = ending.code() => return Ok(ExitCode::from(code)),
        };
        if !goes_on {
            return Ok(ExitCode::SUCCESS);
        }
        // What the viewer has decoded so far is of no use for the screen of another QEMU: it, or another, connects anew.
        socket = tokio::select! {
            again = reopen(cluster, &path, &what) => again?,
            code = ending.code() => return Ok(ExitCode::from(code)),
        };
    }
}

/// Opens the screen on the node that the machine has moved to, or by who takes the place of what carried it: either takes a moment.
async fn reopen(cluster: &Cluster, path: &str, what: &str) -> Result<stream::Socket, Fault> {
    let deadline = Instant::now() + CONNECT;
    loop {
        match stream::open(&cluster.client, path, what).await {
            Err(fault)
                if fault.status.is_none_or(|code| matches!(code, 404 | 409 | 500 | 502 | 503))
                    && Instant::now() < deadline =>
            {
                sleep(AGAIN).await;
            }
            opened => return opened,
        }
    }
}

/// Runs the viewer, if one is wanted, until its user closes it.
async fn view(viewer: Option<&(Viewer, PathBuf)>, address: SocketAddr) -> Result<(), Fault> {
    let Some((viewer, program)) = viewer else {
        return std::future::pending().await;
    };
    let mut command = Command::new(program);
    command.args(viewer.arguments(address)).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let cannot = |why: String| Fault::new(format!("cannot run {}", program.display())).because(why);
    match command.status().await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(cannot(status.to_string())),
        Err(error) => Err(cannot(error.to_string())),
    }
}

async fn screenshot(cluster: &Cluster, args: &Screenshot) -> Outcome {
    let (namespace, name) = request::named(cluster, Kind::Vmi, &args.name)?;
    let what = format!("cannot take a picture of {namespace}/{name}");
    let path = stream::path(Kind::Vmi, &namespace, &name, "vnc/screenshot");
    let request = Request::get(format!("{path}?moveCursor={}", args.move_cursor))
        .body(Body::empty())
        .map_err(|error| Fault::usage(what.clone()).because(error))?;
    let answer = cluster.client.send(request).await.map_err(|error| Fault::api(what.clone(), &error))?;
    let status = answer.status();
    let body = answer.into_body().collect_bytes().await;
    let body = body.map_err(|error| Fault::new(what.clone()).because(chain(&error)))?;
    if !status.is_success() {
        return Err(stream::refused(Fault::new(what), status, &body));
    }
    let written = if args.file.as_os_str() == "-" {
        std::io::Write::write_all(&mut std::io::stdout(), &body)
    } else {
        std::fs::write(&args.file, &body)
    };
    written.map_err(|error| Fault::new(format!("cannot write {}", args.file.display())).because(error))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn viewers() {
        let address = "127.0.0.1:5901".parse().unwrap();
        assert_eq!(Viewer::Remote.arguments(address), ["vnc://127.0.0.1:5901"]);
        assert_eq!(Viewer::Tiger.arguments(address), ["127.0.0.1::5901"]);
        assert_eq!(find(None, None, |name| name == "vncviewer"), Some((Viewer::Tiger, "vncviewer".into())));
        assert_eq!(find(None, None, |_| false), None);
        assert_eq!(find(Some(Viewer::Real), Some("/v".into()), |_| false), Some((Viewer::Real, "/v".into())));
    }

    #[test]
    fn a_screen_or_a_picture() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop).map_err(|error| error.kind());
        assert_eq!(parse("virtctl vnc demo --proxy-only --port=5900"), Ok(()));
        assert_eq!(parse("virtctl vnc screenshot demo --file=a.png"), Ok(()));
        assert_eq!(parse("virtctl vnc"), Err(clap::error::ErrorKind::MissingRequiredArgument));
        assert_eq!(parse("virtctl vnc screenshot demo"), Err(clap::error::ErrorKind::MissingRequiredArgument));
    }
}
