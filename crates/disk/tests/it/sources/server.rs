//! An HTTP server that answers each request by a function of the test, faithfully or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// How many came before.
    pub(crate) number: usize,
    /// `GET`
    pub(crate) method: String,
    /// The path and query, or the whole address when we are asked as a proxy.
    pub(crate) target: String,
    /// By lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Where the range that is asked for begins.
    pub(crate) fn from(&self) -> Option<usize> {
        self.header("range").strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What is sent back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Send only so many bytes of the body, then close.
    cut: Option<usize>,
    /// After what is sent, stay silent.
    hang: bool,
    chunked: bool,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn cut(self, after: usize) -> Self {
        Self { cut: Some(after), ..self }
    }

    pub(crate) fn hang(self, after: usize) -> Self {
        Self { cut: Some(after), hang: true, ..self }
    }

    pub(crate) fn chunked(self) -> Self {
        Self { chunked: true, ..self }
    }

    /// A file as a good server sends it: the range asked for, or the whole.
    pub(crate) fn file(request: &Request, bytes: &[u8]) -> Self {
        match request.from() {
            Some(from) if from >= bytes.len() => Reply::new(416, ""),
            Some(from) => Reply::new(206, &bytes[from..])
                .header("content-range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())),
            None => Reply::new(200, bytes),
        }
    }

    pub(crate) fn redirect(to: impl Into<String>) -> Self {
        Reply::new(302, "").header("location", to)
    }
}

/// A running server; it ends with the value.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::over(answer, None).await
    }

    pub(crate) async fn over(
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, recorded) = (Arc::new(answer), seen.clone());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (answer, seen, tls) = (answer.clone(), recorded.clone(), tls.clone());
                tokio::spawn(async move {
                    // A client that hangs up is what some tests are about.
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                let _ = serve(stream, &*answer, &seen).await;
                            }
                        }
                        None => drop(serve(stream, &*answer, &seen).await),
                    }
                });
            }
        });
        Self { port, seen, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
    seen: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        if head == [0x16] {
            // The beginning of TLS, which this server does not speak.
            return stream.shutdown().await;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let mut request = Request {
        method: first.next().unwrap_or_default().into(),
        target: first.next().unwrap_or_default().into(),
        ..Request::default()
    };
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request.headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = request.header("content-length").parse().unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    let reply = {
        let mut seen = seen.lock().unwrap();
        request.number = seen.len();
        seen.push(request.clone());
        answer(&request)
    };
    let mut head = format!("HTTP/1.1 {} Status\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let announced = reply.headers.iter().any(|(name, _)| name == "content-length");
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    if reply.chunked {
        head += "transfer-encoding: chunked\r\n";
    } else if !announced {
        head += &format!("content-length: {}\r\n", reply.body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    if reply.chunked {
        for piece in body.chunks(100) {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            stream.write_all(piece).await?;
            stream.write_all(b"\r\n").await?;
        }
        if reply.cut.is_none() {
            stream.write_all(b"0\r\n\r\n").await?;
        }
    } else {
        stream.write_all(body).await?;
    }
    stream.flush().await?;
    if reply.hang {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await
}
