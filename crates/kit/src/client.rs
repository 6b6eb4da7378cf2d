//! The connection to the API server: from the pod's service account, or a kubeconfig outside of one.

use std::path::Path;

use kube::{Client, Config};

/// No API server could be found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a service account nor a kubeconfig.
    #[error("no service account and no usable kubeconfig")]
    Infer(#[source] kube::config::InferConfigError),
    /// The configuration does not make a client.
    #[error("cannot use the API server's address or credentials")]
    Client(#[source] kube::Error),
}

/// A client that names itself `component` in the API server's logs, with connections of its own.
///
/// # Errors
/// When there is no configuration to use.
pub async fn connect(component: &str) -> Result<Client, Error> {
    connect_with(component, None).await
}

/// The same, with the token that is in a file instead of the pod's own. The file is read again every minute.
///
/// # Errors
/// When there is no configuration to use.
pub async fn connect_with(component: &str, token: Option<&Path>) -> Result<Client, Error> {
    let mut config = Config::infer().await.map_err(Error::Infer)?;
    if let Some(path) = token {
        let auth =
            kube::config::AuthInfo { token_file: Some(path.to_string_lossy().into_owned()), ..Default::default() };
        config.auth_info = auth;
    }
    if let Ok(agent) = http::HeaderValue::from_str(&format!("{component}/{}", env!("CARGO_PKG_VERSION"))) {
        config.headers.push((http::header::USER_AGENT, agent));
    }
    Client::try_from(config).map_err(Error::Client)
}
