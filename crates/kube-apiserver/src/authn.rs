//! Authentication: who sends this request? Client certificate, bearer token, or nobody; then impersonation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};

use apimachinery::error::ApiError;
use apimachinery::request::User;

use crate::authz::Authorizer;

pub mod certificate;
pub mod impersonate;
pub mod jwt;
pub mod tokens;

use certificate::PeerCertificate;
use tokens::Tokens;

/// What authentication needs; cheap to clone.
#[derive(Clone, Debug)]
pub struct Authenticator {
    /// Service-account tokens.
    pub tokens: Arc<Tokens>,
    /// Decides about impersonation.
    pub authorizer: Authorizer,
}

impl Authenticator {
    /// The user of a request, before impersonation.
    ///
    /// # Errors
    /// 401 when credentials are given and wrong; no credentials at all is `system:anonymous`.
    pub fn identify(&self, peer: Option<&PeerCertificate>, headers: &HeaderMap) -> Result<User, ApiError> {
        if let Some(user) = peer.and_then(PeerCertificate::user) {
            return Ok(user.clone());
        }
        if let Some(token) = bearer(headers) {
            return self.tokens.authenticate(&token, &[]).map(|(user, _)| user).map_err(|error| {
                tracing::debug!(%error, "bearer token refused");
                ApiError::new(401, "Unauthorized", "Unauthorized")
            });
        }
        Ok(User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..User::default() })
    }
}

/// What a WebSocket's subprotocol begins with that is a token.
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The bearer token of the Authorization header, or of the WebSocket subprotocol that browsers use.
fn bearer(headers: &HeaderMap) -> Option<String> {
    use base64::Engine;
    if let Some(value) = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()) {
        let (scheme, token) = value.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned()).filter(|t| !t.is_empty());
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let encoded =
        protocols.flat_map(|v| v.split(',')).find_map(|p| p.trim().strip_prefix(BEARER).map(ToOwned::to_owned))?;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?;
    String::from_utf8(bytes).ok()
}

/// Takes the credentials away, and leaves the other subprotocols of a WebSocket.
fn forget_credentials(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let offered: Vec<&str> =
        offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).collect();
    if !offered.iter().any(|protocol| protocol.trim().starts_with(BEARER)) {
        return;
    }
    let others: Vec<&str> = offered.into_iter().map(str::trim).filter(|p| !p.starts_with(BEARER)).collect();
    let others = HeaderValue::from_str(&others.join(", ")).ok().filter(|others| !others.is_empty());
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if let Some(others) = others {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    }
}

/// The layer: puts a [`User`] into the request's extensions unless the in-process client already did, and removes the
/// credentials so that nothing behind (proxies above all) can pass them on.
pub async fn layer(State(authenticator): State<Authenticator>, mut request: Request, next: Next) -> Response {
    let known = request.extensions().get::<User>().cloned();
    let user = match known {
        Some(user) => user,
        None => match authenticator.identify(request.extensions().get::<PeerCertificate>(), request.headers()) {
            Ok(user) => user,
            Err(error) => return error.into_response(),
        },
    };
    forget_credentials(request.headers_mut());
    let user = match impersonate::requested(&authenticator.authorizer, &user, request.headers()) {
        Ok(None) => user,
        Ok(Some(other)) => {
            tracing::info!(caller = %user.name, user = %other.name, "impersonation");
            other
        }
        Err(error) => return error.into_response(),
    };
    let names: Vec<_> = request.headers().keys().filter(|k| k.as_str().starts_with("impersonate-")).cloned().collect();
    for name in names {
        request.headers_mut().remove(name);
    }
    request.extensions_mut().insert(user);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_behind_sees_a_token() {
        let check = |protocols: &[&str], expect: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
            for protocol in protocols {
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).unwrap());
            }
            forget_credentials(&mut headers);
            assert!(!headers.contains_key(header::AUTHORIZATION));
            let left: Vec<_> = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(left.first().map(|value| value.to_str().unwrap()), expect);
        };
        let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        check(&["plain.kubevirt.io"], Some("plain.kubevirt.io"));
        check(&[token], None);
        check(
            &[&format!("{token}, plain.kubevirt.io"), "v5.channel.k8s.io"],
            Some("plain.kubevirt.io, v5.channel.k8s.io"),
        );
        check(&["plain.kubevirt.io", token], Some("plain.kubevirt.io"));
    }
}
