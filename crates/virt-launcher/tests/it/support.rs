//! A client of the launcher protocol.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rpc::launcher::launcher_client::LauncherClient;
use rpc::launcher::{DomainState, Empty};
use tokio::net::UnixStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Connects to a socket that may not be there yet.
pub(crate) async fn connect(socket: &Path) -> LauncherClient<Channel> {
    let socket: PathBuf = socket.to_owned();
    let wait = async {
        while UnixStream::connect(&socket).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the launcher listens");
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://launcher").connect_with_connector(connector).await.unwrap();
    LauncherClient::new(channel).max_decoding_message_size(32 << 20)
}

/// Reads states until one is as wanted.
pub(crate) async fn until(
    states: &mut Streaming<DomainState>,
    what: &str,
    wanted: impl Fn(&DomainState) -> bool,
) -> DomainState {
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            let state = states.message().await.unwrap().expect("the launcher still tells");
            if wanted(&state) {
                return state;
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("no state with {what} within {PATIENCE:?}"))
}

pub(crate) async fn watch(client: &mut LauncherClient<Channel>) -> Streaming<DomainState> {
    client.watch(Empty {}).await.unwrap().into_inner()
}
