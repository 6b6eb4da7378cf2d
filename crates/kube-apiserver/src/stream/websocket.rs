//! The WebSocket leg to a kubelet.

use axum::body::Body;
use http::{HeaderValue, header};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use apimachinery::error::ApiError;

use super::Streams;
use super::kubelet::{Kubelet, refusal};

/// A leg.
pub(super) type Leg = WebSocketStream<TlsStream<TcpStream>>;

/// Bounds of what one message may hold.
pub(super) fn bounds() -> WebSocketConfig {
    let largest = Some(4 << 20);
    WebSocketConfig::default().max_message_size(largest).max_frame_size(largest).max_write_buffer_size(8 << 20)
}

impl Streams {
    /// Opens a WebSocket to a kubelet.
    pub(super) async fn leg(
        &self,
        kubelet: &Kubelet,
        path: &str,
        protocol: Option<&'static str>,
    ) -> Result<Leg, ApiError> {
        let stream = self.open(kubelet).await?;
        let failed = |e: &dyn std::fmt::Display| {
            ApiError::internal(format!("Internal error occurred: error dialing backend: {e}"))
        };
        let mut request = format!("wss://{}{path}", kubelet.address).into_client_request().map_err(|e| failed(&e))?;
        if let Some(protocol) = protocol {
            request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        match tokio_tungstenite::client_async_with_config(request, stream, Some(bounds())).await {
            Ok((leg, _)) => Ok(leg),
            Err(Error::Http(response)) => {
                let (parts, body) = (*response).into_parts();
                Err(refusal(parts.status, Body::from(body.unwrap_or_default())).await)
            }
            Err(error) => Err(failed(&error)),
        }
    }
}
