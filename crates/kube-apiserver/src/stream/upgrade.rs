//! Protocol upgrades: what a client offers, and the 101 that accepts it.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use apimachinery::error::ApiError;

/// What the client wants the connection to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// A WebSocket with these subprotocols.
    WebSocket {
        /// The client's nonce.
        key: String,
        /// Subprotocols in order of preference.
        protocols: Vec<String>,
    },
    /// SPDY/3.1 with these stream protocols.
    Spdy {
        /// `X-Stream-Protocol-Version` values.
        protocols: Vec<String>,
    },
}

fn tokens(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect()
}

impl Offer {
    /// Reads the offer of a request.
    pub(super) fn of(request: &Request) -> Result<Self, ApiError> {
        let headers = request.headers();
        let upgrade = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if upgrade.eq_ignore_ascii_case("websocket") {
            let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|v| v.to_str().ok()).unwrap_or_default();
            if key.is_empty() {
                return Err(ApiError::bad_request("the WebSocket handshake has no key"));
            }
            return Ok(Self::WebSocket { key: key.to_owned(), protocols: tokens(headers, "sec-websocket-protocol") });
        }
        if upgrade.eq_ignore_ascii_case("SPDY/3.1") {
            return Ok(Self::Spdy { protocols: tokens(headers, "x-stream-protocol-version") });
        }
        Err(ApiError::bad_request("Upgrade request required"))
    }
}

/// 101 for a WebSocket.
pub(super) fn accept_websocket(key: &str, protocol: &str) -> Response {
    let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
    let mut response = switching("websocket");
    if let Ok(value) = HeaderValue::from_str(&accept) {
        response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, value);
    }
    if let Some(value) = Some(protocol).filter(|p| !p.is_empty()).and_then(|p| HeaderValue::from_str(p).ok()) {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    response
}

/// 101 for SPDY.
pub(super) fn accept_spdy(protocol: &'static str) -> Response {
    let mut response = switching("SPDY/3.1");
    if !protocol.is_empty() {
        response.headers_mut().insert("x-stream-protocol-version", HeaderValue::from_static(protocol));
    }
    response
}

fn switching(to: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(to));
    response
}
