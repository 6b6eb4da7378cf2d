//! Who dials the virt-handler that a guest is to come to, and is not the virt-handler it is to come from: each is refused, and
//! the refusal is logged with its reason.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::uid;
use e2e::product;
use e2e::wait::happens;
use jiff::{SignedDuration, Timestamp};
use kit::certs::{Authority, Leaf, Pair};
use kit::peer::Peers;
use kit::tls::{Material, Trust};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::long;
use crate::mover::{Mover, NAME, with_mover};

const PORT: u16 = 8187;
const HOUR: Duration = Duration::from_secs(3600);
/// For an answer.
const ANSWER: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("migration_strangers_are_refused", are_refused)]
}

/// What somebody shows, and what the refusal has to say.
struct Stranger {
    shows: Option<Pair>,
    why: String,
}

fn are_refused() -> Result<()> {
    with_mover(|mover| {
        mover.disturbed(|mover, migration, vmi| {
            let state = &vmi["status"]["migrationState"];
            let target = state["targetNode"].as_str().unwrap_or_default();
            let source = state["sourceNode"].as_str().unwrap_or_default();
            let handler = Handler::on(target)?;
            for stranger in strangers(source)? {
                handler.refuses(&stranger, &greeting(mover, vmi))?;
            }
            // The guest's way was not touched by any of them.
            mover.space.kubectl(&["delete", "vmim", migration, "--timeout=60s"])?;
            Ok(())
        })
    })
}

/// What the source's virt-handler would say.
fn greeting(mover: &Mover, vmi: &Value) -> Value {
    json!({
        "namespace": mover.space.name(), "name": NAME, "uid": uid(vmi), "channel": "memory",
        "migration": vmi["status"]["migrationState"]["migrationUid"],
    })
}

fn strangers(source: &str) -> Result<Vec<Stranger>> {
    let now = Timestamp::now();
    let authority = Authority::from_pair(secret("kubevirt-ca")?)?;
    let foreign = Authority::generate("foreign", now, HOUR)?;
    let leaf = |role: &str, node: &str| Leaf {
        name: "stranger".into(),
        role: role.into(),
        node: Some(node.into()),
        ..Leaf::default()
    };
    let ours = leaf("virt-handler", source);
    let shows = |pair: Pair, why: &str| Stranger { shows: Some(pair), why: why.to_owned() };
    Ok(vec![
        shows(foreign.issue(&ours, now, HOUR)?, "UnknownIssuer"),
        shows(authority.issue(&ours, now - SignedDuration::from_hours(3), HOUR)?, "xpired"),
        shows(authority.issue(&leaf("virt-api", source), now, HOUR)?, "role"),
        shows(secret("kubevirt-controller-certs")?, "role"),
        shows(
            authority.issue(&leaf("virt-handler", "elsewhere"), now, HOUR)?,
            &format!("the certificate is that of node \"elsewhere\", expected \"{source}\""),
        ),
        Stranger { shows: None, why: "this migration is to be encrypted".to_owned() },
    ])
}

/// A pair that the cluster keeps.
fn secret(name: &str) -> Result<Pair> {
    let of = |key: &str| {
        let template = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
        product::kubectl(&["get", "secret", name, "-o", &template])
    };
    Ok(Pair { certificate: of("tls.crt")?, key: of("tls.key")? })
}

/// The virt-handler of a node.
struct Handler {
    pod: String,
    node: String,
    address: SocketAddr,
}

impl Handler {
    fn on(node: &str) -> Result<Self> {
        let selector = format!("spec.nodeName={node}");
        let words = ["get", "pods", "-l", "kubevirt.io=virt-handler", "--field-selector", &selector, "-o", "json"];
        let list: Value = serde_json::from_str(&product::kubectl(&words)?).context("kubectl's JSON")?;
        let pod = &list["items"][0];
        let ip = pod["status"]["podIP"].as_str().context("virt-handler has no address")?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        Ok(Self { pod: name.to_owned(), node: node.to_owned(), address: SocketAddr::new(ip.parse()?, PORT) })
    }

    /// The stranger gets no stream, and the handler's log says why.
    fn refuses(&self, stranger: &Stranger, greeting: &Value) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (own, answer) = runtime.block_on(self.dial(stranger, greeting))?;
        ensure!(!answer.trim_end().ends_with("{}"), "{} was let in", stranger.why);
        happens(&format!("the refusal of {own} was logged with {:?}", stranger.why), || {
            let log = product::kubectl(&["logs", &self.pod, "-c", "virt-handler", "--tail=400"])?;
            // The handler knows an IPv4 address as a mapped one.
            let port = format!(":{} ", own.port());
            let about = |line: &&str| line.contains(&port) && line.contains("was refused");
            let told = log.lines().find(about).map(|line| line.replace('\\', ""));
            Ok(told.filter(|line| line.contains(&stranger.why)).map(drop))
        })
    }

    /// This side's address, and what came back; a refused handshake brings nothing.
    async fn dial(&self, stranger: &Stranger, greeting: &Value) -> Result<(SocketAddr, String)> {
        let stream = timeout(ANSWER, TcpStream::connect(self.address)).await??;
        let own = stream.local_addr()?;
        let Some(pair) = &stranger.shows else {
            return Ok((own, greet(stream, greeting).await));
        };
        let (material, trust) = (Material::new(), Trust::new());
        material.set(pair)?;
        trust.set(&secret("kubevirt-ca")?.certificate)?;
        let met = Peers::new("virt-handler", material, trust).connect(stream, &self.node).await;
        let answer = match met {
            Ok(stream) => greet(stream, greeting).await,
            Err(_) => String::new(),
        };
        Ok((own, answer))
    }
}

/// The answer to a greeting; empty when there is none.
async fn greet(mut stream: impl AsyncRead + AsyncWrite + Unpin, greeting: &Value) -> String {
    let mut answer = String::new();
    let talk = async {
        stream.write_all(format!("{greeting}\n").as_bytes()).await?;
        stream.flush().await?;
        BufReader::new(&mut stream).read_line(&mut answer).await
    };
    // Who is refused may not even hear of it.
    let _ = timeout(ANSWER, talk).await;
    answer
}
