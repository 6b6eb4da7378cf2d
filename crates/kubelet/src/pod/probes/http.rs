//! The GET of probes and hooks: the status code, nothing else. Certificates are not checked, as the API defines.

use std::sync::Arc;

use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPHeader;
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

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
        let connector = tokio_rustls::TlsConnector::from(trusting().map_err(|error| fail(&error))?);
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

fn trusting() -> Result<Arc<rustls::ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
