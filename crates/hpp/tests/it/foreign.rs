//! The driver's sockets, dialled as gRPC for Go dials them: HTTP/2 by hand, with the socket's path for an `:authority`.

use std::path::Path;
use std::time::Duration;

use kit::shutdown::CancellationToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::plugin::Plugin;

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// How gRPC for Go has sent the path: as it is, in Huffman's code, and escaped (`%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx.sock`)
/// in that code.
const AUTHORITIES: [(bool, &[u8]); 3] = [
    (false, b"/var/lib/kubelet/plugins_registry/x.sock"),
    (false, b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx.sock"),
    (
        true,
        b"\x54\x58\x7b\x8e\xc5\x45\x86\x83\x46\xa8\xb0\xf5\xb6\x32\xd0\x54\xaa\x2c\x35\xd1\x6c\xc6\xa9\x11\x58\x59\x8c\x84\xd9\xe9\x51\x61\xf2\xba\x0e\x4e\xbf",
    ),
];

struct Dialled(UnixStream);

impl Dialled {
    async fn new(socket: &Path) -> Self {
        let reached = async {
            loop {
                match UnixStream::connect(socket).await {
                    Ok(stream) => break stream,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let mut stream = tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut dialled = Dialled(stream);
        dialled.frame(4, 0, 0, &[]).await;
        dialled
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Sends a message without fields, and returns the frame that answers it.
    async fn call(&mut self, stream: u32, block: &[u8]) -> Vec<u8> {
        self.frame(HEADERS, 4, stream, block).await;
        self.frame(DATA, 1, stream, &[0; 5]).await;
        let answered = async {
            loop {
                let mut head = [0; 9];
                self.0.read_exact(&mut head).await.unwrap();
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                self.0.read_exact(&mut payload).await.unwrap();
                match head[3] {
                    RST_STREAM | GOAWAY => panic!("the server refused: frame {} {payload:02x?}", head[3]),
                    DATA if head[8] == stream.to_be_bytes()[3] => break payload,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap()
    }
}

/// A literal of HPACK that goes into the table: the name is an entry of the static table.
fn literal(name: u8, coded: bool, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    assert!(length < 0x7f);
    [&[0x40 | name, if coded { 0x80 | length } else { length }], value].concat()
}

/// What each socket answers to each form of the path, twice: the second time by its number in the table.
async fn answers(socket: &Path, method: &str) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for (coded, authority) in AUTHORITIES {
        let mut dialled = Dialled::new(socket).await;
        // POST, http, and then :path, :authority, content-type and te, which become entries 65 to 62.
        let first = [
            b"\x83\x86".to_vec(),
            literal(4, false, method.as_bytes()),
            literal(1, coded, authority),
            literal(31, false, b"application/grpc"),
            [b"\x40\x02te".as_slice(), b"\x08trailers"].concat(),
        ];
        answers.push(dialled.call(1, &first.concat()).await);
        answers.push(dialled.call(3, b"\x83\x86\xc1\xc0\xbf\xbe").await);
    }
    answers
}

#[tokio::test]
async fn the_kubelet_may_name_the_sockets_path_as_the_authority() {
    let plugin = Plugin::start().ready().await;
    let name = hpp::csi::NAME;
    let says = |answer: &[u8]| String::from_utf8_lossy(answer).contains(name);
    for answer in answers(&plugin.dir.path().join("csi.sock"), "/csi.v1.Identity/GetPluginInfo").await {
        assert!(says(&answer), "{answer:02x?}");
    }
    let socket = plugin.dir.path().join("reg.sock");
    let (at, stop) = (socket.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let serving = tokio::spawn(async move {
        hpp::csi::registration::serve(name.into(), "/csi/csi.sock".into(), &at, stopped).await.unwrap();
    });
    for answer in answers(&socket, "/pluginregistration.Registration/GetInfo").await {
        assert!(says(&answer), "{answer:02x?}");
    }
    stop.cancel();
    serving.await.unwrap();
}
