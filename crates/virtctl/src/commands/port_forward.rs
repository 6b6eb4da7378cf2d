//! `virtctl port-forward`: local ports, or standard input and output, to ports of the machine.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use meta::text::printable;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::stream::{self, Broken};
use crate::target::Target;

/// Largest datagram.
const DATAGRAM: usize = 65_507;
/// Datagrams of one sender that may wait.
const QUEUE: usize = 64;
/// How long a sender of datagrams may be silent before its stream is closed.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Forward local ports to a virtual machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl port-forward vmi/demo 8080:80          local port 8080 to port 80 of the machine
  virtctl port-forward vm/demo/other udp/5353:53 a UDP port, of a machine in namespace other
  virtctl port-forward --stdio=true vm/demo 22   standard input and output, as a ProxyCommand of ssh")]
pub(crate) struct Args {
    /// The machine: vm/NAME or vmi/NAME, /NAMESPACE behind it if it is another one.
    #[arg(value_name = "TARGET")]
    target: String,
    /// Ports: [PROTOCOL/]LOCAL[:TARGET].
    #[arg(value_name = "PORT", required = true)]
    ports: Vec<String>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Forward standard input and output instead of a local port; exactly one port.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    stdio: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// One port of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forward {
    protocol: Protocol,
    local: u16,
    remote: u16,
}

fn parse(text: &str) -> Result<Forward, Fault> {
    let wrong = |why: String| {
        Fault::usage(format!("{text:?} names no port"))
            .because(why)
            .hint("write LOCAL[:TARGET], and udp/ before it for UDP")
    };
    let (protocol, ports) = match text.split_once('/') {
        Some(("tcp", ports)) => (Protocol::Tcp, ports),
        Some(("udp", ports)) => (Protocol::Udp, ports),
        Some((other, _)) => return Err(wrong(format!("{other:?} is neither tcp nor udp"))),
        None => (Protocol::Tcp, text),
    };
    let number = |word: &str| word.parse::<u16>().map_err(|_| wrong(format!("{word:?} is not a port number")));
    let (local, remote) = ports.split_once(':').unwrap_or((ports, ports));
    let (local, remote) = (number(local)?, number(remote)?);
    if remote == 0 {
        return Err(wrong("port 0 of a machine is none".to_owned()));
    }
    Ok(Forward { protocol, local, remote })
}

/// The machine, and how its ports are reached.
struct Remote {
    cluster: Cluster,
    target: Target,
    namespace: String,
}

impl Remote {
    async fn open(&self, forward: Forward) -> Result<stream::Socket, Fault> {
        let subresource = format!("portforward/{}/{}", forward.remote, forward.protocol.word());
        let path = stream::path(self.target.kind, &self.namespace, &self.target.name, &subresource);
        let what = format!("cannot reach port {} of {}/{}", forward.remote, self.namespace, self.target.name);
        stream::open(&self.cluster.client, &path, &what).await
    }
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let target = Target::parse(&args.target)?;
    let forwards = args.ports.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    let address: IpAddr = match args.address.as_str() {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        other => other.parse().map_err(|_| Fault::usage(format!("--address {other:?} is not an IP address")))?,
    };
    let cluster = globals.cluster().await?;
    let namespace = target.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
    let remote = Arc::new(Remote { cluster, target, namespace });
    if args.stdio {
        let [forward] = forwards.as_slice() else {
            return Err(
                Fault::usage("--stdio forwards exactly one port").because(format!("{} were given", forwards.len()))
            );
        };
        return through_stdio(&remote, *forward).await;
    }
    let mut tasks = JoinSet::new();
    for forward in forwards {
        let (remote, local) = (remote.clone(), SocketAddr::new(address, forward.local));
        let cannot = |error| Fault::new(format!("cannot listen on {local}")).because(error);
        match forward.protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(local).await.map_err(cannot)?;
                announce(listener.local_addr().unwrap_or(local), forward);
                tasks.spawn(tcp(remote, forward, listener));
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(local).await.map_err(cannot)?;
                announce(socket.local_addr().unwrap_or(local), forward);
                tasks.spawn(udp(remote, forward, Arc::new(socket)));
            }
        }
    }
    while tasks.join_next().await.is_some() {}
    Ok(ExitCode::SUCCESS)
}

fn announce(local: SocketAddr, forward: Forward) {
    eprintln!("forwarding {} {local} to {}", forward.protocol.word(), forward.remote);
}

async fn through_stdio(remote: &Remote, forward: Forward) -> Outcome {
    let socket = remote.open(forward).await?;
    match stream::splice(socket, tokio::io::stdin(), tokio::io::stdout()).await {
        Err(Broken::Near(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(broken) => Err(Fault::new("the connection broke").because(broken)),
        Ok(_) => Ok(ExitCode::SUCCESS),
    }
}

async fn tcp(remote: Arc<Remote>, forward: Forward, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut local, _)) = accepted else { continue };
                let _ = local.set_nodelay(true);
                let remote = remote.clone();
                connections.spawn(async move {
                    let ended = match remote.open(forward).await {
                        Ok(socket) => {
                            let (reader, writer) = local.split();
                            stream::splice(socket, reader, writer).await.map_err(|error| error.to_string())
                        }
                        Err(fault) => Err(fault.to_string()),
                    };
                    if let Err(why) = ended {
                        eprintln!("{}", printable(&why));
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One stream for each sender, so that answers find their way back.
async fn udp(remote: Arc<Remote>, forward: Forward, local: Arc<UdpSocket>) {
    let mut senders: HashMap<SocketAddr, mpsc::Sender<Bytes>> = HashMap::new();
    let mut streams = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let (length, from) = tokio::select! {
            received = local.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // A sender that refused our answer: the next datagram matters.
                Err(_) => continue,
            },
            Some(_) = streams.join_next() => {
                senders.retain(|_, queue| !queue.is_closed());
                continue;
            }
        };
        let datagram = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
        let queue = senders.entry(from).or_insert_with(|| start(&mut streams, &remote, forward, &local, from));
        if queue.is_closed() {
            *queue = start(&mut streams, &remote, forward, &local, from);
        }
        // A full queue loses the datagram, as a full socket would.
        let _ = queue.try_send(datagram);
    }
}

fn start(
    streams: &mut JoinSet<()>,
    remote: &Arc<Remote>,
    forward: Forward,
    local: &Arc<UdpSocket>,
    from: SocketAddr,
) -> mpsc::Sender<Bytes> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (remote, local) = (remote.clone(), local.clone());
    streams.spawn(async move {
        if let Err(fault) = datagrams(&remote, forward, &local, from, receiver).await {
            eprintln!("{fault}");
        }
    });
    sender
}

async fn datagrams(
    remote: &Remote,
    forward: Forward,
    local: &UdpSocket,
    from: SocketAddr,
    mut queue: mpsc::Receiver<Bytes>,
) -> Result<(), Fault> {
    let mut socket = remote.open(forward).await?;
    loop {
        tokio::select! {
            datagram = queue.recv() => {
                let Some(datagram) = datagram else { break };
                if socket.send(Message::Binary(datagram)).await.is_err() {
                    break;
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(message)) => if let Some(bytes) = stream::payload(message) {
                    let _ = local.send_to(&bytes, from).await;
                },
            },
            () = tokio::time::sleep(SILENCE) => break,
        }
    }
    let _ = socket.close(None).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<(Protocol, u16, u16), &str>) {
        match (parse(text), expect) {
            (Ok(found), Ok((protocol, local, remote))) => assert_eq!(found, Forward { protocol, local, remote }),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn ports() {
        check("80", Ok((Protocol::Tcp, 80, 80)));
        check("8080:80", Ok((Protocol::Tcp, 8080, 80)));
        check("tcp/8080:80", Ok((Protocol::Tcp, 8080, 80)));
        check("udp/53", Ok((Protocol::Udp, 53, 53)));
        check("0:22", Ok((Protocol::Tcp, 0, 22)));
        check("22:0", Err("port 0 of a machine is none"));
        check("sctp/1", Err("\"sctp\" is neither tcp nor udp"));
        check("http", Err("\"http\" is not a port number"));
        check("1:2:3", Err("\"2:3\" is not a port number"));
        check("70000", Err("\"70000\" is not a port number"));
        check("", Err("\"\" is not a port number"));
    }
}
