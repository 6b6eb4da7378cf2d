//! `virtctl console`: the serial console in this terminal, until Ctrl-].
//!
//! ```text
//! wait for Running -> open -> pump -+- Ctrl-], end of input, signal -> leave
//!        ^                          +- the guest's console closed   -> leave
//!        +- connection lost, moved -+- somebody took it over -> Enter takes it back, else leave
//! ```

use std::process::ExitCode;
use std::time::Duration;

use api::kubevirt::constants::phase;
use api::kubevirt::v1::VirtualMachineInstance;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use kube::Api;
use kube::runtime::wait::{Condition, await_condition};
use meta::text::printable;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::target::{Kind, Target};
use crate::terminal::{Ending, Raw};
use crate::{input, stream};

/// Ctrl-].
const ESCAPE: u8 = 0x1d;
/// How long is waited for what a peer that takes nothing any more has said before.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long to wait before a lost connection is opened again.
const AGAIN: Duration = Duration::from_millis(500);

/// Connect to the serial console of a virtual machine instance.
#[derive(Debug, clap::Args)]
#[command(after_help = "The escape sequence is ^] (Ctrl and the closing bracket).")]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
    /// Minutes to wait for the machine to run.
    #[arg(long, default_value_t = 5, value_name = "MINUTES")]
    timeout: u64,
}

/// How a session on the console ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Ctrl-] was typed.
    Escaped,
    /// Nothing more to type.
    InputEnded,
    /// The guest's console is gone, in the server's words.
    Closed(String),
    /// The machine goes on on another node.
    Moved,
    /// Somebody else uses the console now.
    TakenOver,
    /// The connection broke.
    Lost,
    /// Standard output is gone.
    OutputEnded,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let target = Target::parse_name(&args.name)?;
    let cluster = globals.cluster().await?;
    let namespace = target.namespace.unwrap_or_else(|| cluster.namespace.clone());
    let session = Session { cluster, namespace, name: target.name, patience: Duration::from_secs(args.timeout * 60) };
    let mut ending = Ending::watch().map_err(|error| Fault::new("cannot watch signals").because(error))?;
    tokio::select! {
        outcome = session.run() => outcome,
        // Dropping the session restores the terminal.
        code = ending.code() => Ok(ExitCode::from(code)),
    }
}

struct Session {
    cluster: Cluster,
    namespace: String,
    name: String,
    patience: Duration,
}

impl Session {
    async fn run(&self) -> Outcome {
        let mut socket = self.open(true).await?;
        let mut keys = input::standard().map_err(|error| Fault::new("cannot read the keyboard").because(error))?;
        let mut moved = false;
        loop {
            if !moved {
                eprintln!("Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.", self.name);
            }
            let raw = Raw::enter(rustix::stdio::stdin())
                .map_err(|error| Fault::new("cannot prepare the terminal").because(error))?;
            let interactive = raw.is_some();
            let end = pump(&mut socket, &mut keys, tokio::io::stdout()).await;
            drop(raw);
            moved = end == End::Moved;
            if moved {
                // What the guest prints goes on as if nothing had been: a word of ours would stand in the middle of it.
                socket = self.open(false).await?;
                continue;
            }
            eprintln!();
            match end {
                End::Escaped | End::InputEnded | End::OutputEnded => return Ok(ExitCode::SUCCESS),
                End::Moved => {}
                End::Closed(why) => {
                    eprintln!("disconnected: {}", printable(&why));
                    return Ok(ExitCode::SUCCESS);
                }
                End::TakenOver if interactive => {
                    eprintln!("Another session took this console over. Enter takes it back, Ctrl-C leaves.");
                    if keys.recv().await.is_none() {
                        return Ok(ExitCode::FAILURE);
                    }
                }
                End::TakenOver => {
                    return Err(Fault::new("disconnected").because("another session took this console over"));
                }
                End::Lost => {
                    eprintln!("connection lost, connecting again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
            socket = self.open(true).await?;
        }
    }

    /// Waits until the machine runs, and opens its console. `tell` says that it waits.
    async fn open(&self, tell: bool) -> Result<stream::Socket, Fault> {
        let deadline = Instant::now() + self.patience;
        let path = stream::path(Kind::Vmi, &self.namespace, &self.name, "console");
        let what = format!("cannot open the console of {}/{}", self.namespace, self.name);
        let mut told = !tell;
        loop {
            let fault = match stream::open(&self.cluster.client, &path, &what).await {
                Ok(socket) => return Ok(socket),
                Err(fault) => fault,
            };
            // Not yet there, not yet running, or its node's agent not yet: worth waiting for.
            let soon = matches!(fault.status, Some(404 | 409 | 500 | 502 | 503)) || fault.says("VMI is not running");
            if !soon || Instant::now() >= deadline {
                return Err(
                    fault.hint(format!("`virtctl explain {} -n {}` says what it waits for", self.name, self.namespace))
                );
            }
            if fault.status == Some(404) && !self.exists().await? {
                return Err(fault);
            }
            if !told {
                eprintln!("Waiting for {}/{} to run", self.namespace, self.name);
                told = true;
            }
            let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
            let waiting = Box::pin(await_condition(vmis, &self.name, running()));
            match timeout_at(deadline, waiting).await {
                Ok(Ok(_)) => tokio::time::sleep(AGAIN).await,
                Ok(Err(error)) => return Err(Fault::new(what).because(error)),
                Err(_) => {
                    let minutes = self.patience.as_secs() / 60;
                    return Err(Fault::new(what)
                        .because(format!("it does not run after {minutes} minutes"))
                        .hint(format!("`virtctl explain {} -n {}` says why", self.name, self.namespace)));
                }
            }
        }
    }

    /// Whether there is a machine of this name at all, started or not.
    async fn exists(&self) -> Result<bool, Fault> {
        let vms: Api<api::kubevirt::v1::VirtualMachine> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let what = format!("cannot look for {}/{}", self.namespace, self.name);
        let (vm, vmi) = tokio::try_join!(vms.get_metadata_opt(&self.name), vmis.get_metadata_opt(&self.name))
            .map_err(|error| Fault::api(what, &error))?;
        Ok(vm.is_some() || vmi.is_some())
    }
}

fn running() -> impl Condition<VirtualMachineInstance> {
    |vmi: Option<&VirtualMachineInstance>| {
        let status = vmi.and_then(|vmi| vmi.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING)
    }
}

/// What of `typed` goes to the guest, and whether the escape was in it.
fn until_escape(typed: &[u8]) -> (&[u8], bool) {
    match typed.iter().position(|byte| *byte == ESCAPE) {
        Some(at) => (typed.get(..at).unwrap_or_default(), true),
        None => (typed, false),
    }
}

fn farewell(reason: &str) -> End {
    if reason.contains("took the console over") {
        End::TakenOver
    } else if stream::says_moved(reason) {
        End::Moved
    } else if reason.is_empty() {
        End::Closed("the console was closed".to_owned())
    } else {
        End::Closed(reason.to_owned())
    }
}

/// Copies keys to the console and the console to `output` until something ends it.
async fn pump<S, W>(socket: &mut WebSocketStream<S>, keys: &mut Receiver<Vec<u8>>, mut output: W) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut alive = interval(stream::ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = loop {
        tokio::select! {
            typed = keys.recv() => {
                let Some(typed) = typed else { break End::InputEnded };
                let (bytes, escaped) = until_escape(&typed);
                if !bytes.is_empty() && socket.send(Message::Binary(Bytes::copy_from_slice(bytes))).await.is_err() {
                    return last_word(socket, output).await;
                }
                if escaped {
                    break End::Escaped;
                }
            }
            message = socket.next() => match message {
                Some(Ok(message)) => if let Some(end) = hear(message, &mut output).await {
                    break end;
                },
                Some(Err(_)) | None => return End::Lost,
            },
            _ = alive.tick() => if socket.send(Message::Ping(Bytes::new())).await.is_err() {
                return last_word(socket, output).await;
            },
        }
    };
    let _ = socket.close(None).await;
    end
}

/// Shows what the console sent; the end, if that was it.
async fn hear(message: Message, mut output: impl AsyncWrite + Unpin) -> Option<End> {
    if let Message::Close(frame) = message {
        let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
        return Some(farewell(&reason));
    }
    let bytes = stream::payload(message)?;
    (output.write_all(&bytes).await.is_err() || output.flush().await.is_err()).then_some(End::OutputEnded)
}

/// The end of a console to which nothing can be sent any more: whoever closed it said why before, which may be unread.
async fn last_word<S, W>(socket: &mut WebSocketStream<S>, mut output: W) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
    W: AsyncWrite + Unpin,
{
    let until = Instant::now() + LAST_WORD;
    while let Ok(Some(Ok(message))) = timeout_at(until, socket.next()).await {
        if let Some(end) = hear(message, &mut output).await {
            return end;
        }
    }
    End::Lost
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
    use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

    use super::*;

    type End2End = (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>);

    async fn pair() -> End2End {
        let (a, b) = duplex(1 << 16);
        tokio::join!(
            WebSocketStream::from_raw_socket(a, Role::Client, None),
            WebSocketStream::from_raw_socket(b, Role::Server, None)
        )
    }

    #[test]
    fn the_escape() {
        assert_eq!(until_escape(b"ls\r"), (&b"ls\r"[..], false));
        assert_eq!(until_escape(b"ls\r\x1dmore"), (&b"ls\r"[..], true));
        assert_eq!(until_escape(b"\x1d"), (&b""[..], true));
    }

    /// Types `typed` into a console that sends `sent` and then, if told, `goodbye`: how it ends, what the guest got, what
    /// was shown.
    async fn session(typed: &[u8], sent: &[u8], goodbye: Option<&'static str>) -> (End, Vec<u8>, Vec<u8>) {
        let (mut client, mut server) = pair().await;
        let (keys, mut receiver) = mpsc::channel(1);
        server.send(Message::Binary(Bytes::copy_from_slice(sent))).await.unwrap();
        let mut got = Vec::new();
        let typed = typed.to_vec();
        let guest = async {
            keys.send(typed.clone()).await.unwrap();
            while let Some(Ok(message)) = server.next().await {
                got.extend(stream::payload(message).unwrap_or_default());
                if got == typed {
                    if let Some(reason) = goodbye {
                        let frame = CloseFrame { code: CloseCode::Normal, reason: reason.into() };
                        server.close(Some(frame)).await.unwrap();
                    }
                    break;
                }
            }
            if goodbye.is_none() {
                drop(server);
            }
            // Kept until the session ended: the end of the keys would be another reason to.
            keys
        };
        let mut shown = Vec::new();
        let (end, _keys) = tokio::join!(pump(&mut client, &mut receiver, &mut shown), guest);
        (end, got, shown)
    }

    #[tokio::test]
    async fn leaving() {
        let (end, got, _) = session(b"exit\r\x1dignored", b"", None).await;
        assert_eq!((end, got.as_slice()), (End::Escaped, &b"exit\r"[..]));
    }

    #[tokio::test]
    async fn the_guest_goes() {
        let (end, got, shown) = session(b"poweroff\r", b"login: ", Some("the guest's console closed")).await;
        assert_eq!(end, End::Closed("the guest's console closed".to_owned()));
        assert_eq!((got.as_slice(), shown.as_slice()), (&b"poweroff\r"[..], &b"login: "[..]));
    }

    #[tokio::test]
    async fn the_guest_goes_on_elsewhere() {
        let (end, _, shown) = session(b"x", b"half a l", Some("the virtual machine moved to another node")).await;
        assert_eq!((end, shown.as_slice()), (End::Moved, &b"half a l"[..]));
    }

    #[tokio::test]
    async fn taken_over() {
        let (end, ..) = session(b"x", b"", Some("another user took the console over")).await;
        assert_eq!(end, End::TakenOver);
    }

    #[tokio::test]
    async fn the_close_reason_is_shown_while_input_is_sent() {
        // Which of the two is looked at first is a matter of chance.
        for _ in 0..50 {
            let (mut client, mut server) = pair().await;
            let reason = "another user took the console over";
            server.send(Message::Binary(Bytes::from_static(b"bye"))).await.unwrap();
            let frame = CloseFrame { code: CloseCode::Normal, reason: reason.into() };
            server.close(Some(frame)).await.unwrap();
            drop(server);
            let (keys, mut receiver) = mpsc::channel(1);
            keys.send(b"x".to_vec()).await.unwrap();
            let mut shown = Vec::new();
            let end = pump(&mut client, &mut receiver, &mut shown).await;
            assert_eq!((end, shown.as_slice()), (End::TakenOver, &b"bye"[..]));
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_told_from_a_closed_console() {
        let (mut client, server) = pair().await;
        let (_keys, mut receiver) = mpsc::channel(1);
        drop(server);
        assert_eq!(pump(&mut client, &mut receiver, Vec::new()).await, End::Lost);
    }
}
