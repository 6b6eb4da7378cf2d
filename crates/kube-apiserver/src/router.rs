//! The ways in: the API as a service, as clients in this process, and on the network.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use apimachinery::request::User;

use crate::serve::fairness;
use crate::serve::tls::Tls;
use crate::{ApiServer, rest};

impl ApiServer {
    /// The whole API as a service. Requests must carry a [`User`] in their extensions, put there by an authentication
    /// layer; one without is refused.
    pub fn router(&self) -> axum::Router {
        axum::Router::new().fallback(entry).with_state(self.clone())
    }

    /// A client in this process, as administrator.
    pub fn client(&self) -> kube::Client {
        self.client_as(User::admin())
    }

    /// The same for a component, whose name what it writes bears.
    pub fn client_named(&self, component: &'static str) -> kube::Client {
        let agent = http::HeaderValue::from_static(component);
        let named = axum::middleware::map_request(move |mut request: Request| {
            request.headers_mut().entry(http::header::USER_AGENT).or_insert_with(|| agent.clone());
            std::future::ready(request)
        });
        kube::Client::new(self.router().layer(named).layer(axum::Extension(User::admin())), "default")
    }

    /// A client in this process, as `user`: authorization and admission apply.
    pub fn client_as(&self, user: User) -> kube::Client {
        let router = self.router().layer(axum::Extension(user));
        kube::Client::new(router, "default")
    }

    /// The router as the network sees it: fairness behind authentication, in front of everything else.
    pub fn network_router(&self) -> axum::Router {
        let edges = self.edges();
        self.router()
            .layer(axum::middleware::from_fn_with_state(edges.fairness.clone(), fairness::layer))
            .layer(axum::middleware::from_fn_with_state(edges.authenticator.clone(), crate::authn::layer))
    }

    /// Serves the API on TLS listeners until `shutdown`.
    pub async fn serve(&self, listeners: Vec<TcpListener>, tls: Arc<Tls>, shutdown: CancellationToken) {
        let closing = async {
            shutdown.cancelled().await;
            self.close();
        };
        tokio::join!(closing, crate::serve::serve(listeners, tls, self.network_router(), shutdown.clone()));
    }
}

async fn entry(State(server): State<ApiServer>, request: Request) -> Response {
    rest::handle(server, request).await.into_response()
}
