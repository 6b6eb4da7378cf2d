//! The GET of probes and hooks: the status code, nothing else. Certificates are not checked, as the API defines.

use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPHeader;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The status code of a GET; the error is a sentence. Redirects are answers, not orders.
pub(crate) async fn get(host: &str, port: u16, path: &str, https: bool, headers: &[HTTPHeader]) -> Result<u16, String> {
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let scheme = if https { "https" } else { "http" };
    let url = format!("{scheme}://{bracketed}:{port}{}{path}", if path.starts_with('/') { "" } else { "/" });
    let fail = |error: &(dyn std::error::Error + 'static)| format!("Get \"{url}\": {}", kit::Chain(error));
    let stream = TcpStream::connect((host, port)).await.map_err(|error| fail(&error))?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request = http::Request::get(path);
    let mut named = (false, false);
    for header in headers {
        named.0 |= header.name.eq_ignore_ascii_case("host");
        named.1 |= header.name.eq_ignore_ascii_case("user-agent");
        request = request.header(&header.name, &header.value);
    }
    if !named.0 {
        request = request.header(http::header::HOST, format!("{bracketed}:{port}"));
    }
    if !named.1 {
        request = request.header(http::header::USER_AGENT, "kube-probe/1.33");
    }
    let request = request.header(http::header::ACCEPT, "*/*").header(http::header::CONNECTION, "close");
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|error| fail(&error))?;
    let answer = if https {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| fail(&error))?;
        let config = kit::tls::unchecked_client().map_err(|error| fail(&error))?;
        let connector = tokio_rustls::TlsConnector::from(config);
        let stream = connector.connect(name, stream).await.map_err(|error| fail(&error))?;
        exchange(stream, request).await
    } else {
        exchange(stream, request).await
    };
    answer.map_err(|error| fail(&error))
}

async fn exchange<S>(stream: S, request: http::Request<Empty<bytes::Bytes>>) -> Result<u16, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut answer => answer.map(|answer| answer.status().as_u16()),
        ended = &mut connection => {
            ended?;
            answer.await.map(|answer| answer.status().as_u16())
        }
    }
}
