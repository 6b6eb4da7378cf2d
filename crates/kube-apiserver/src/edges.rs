//! The edge pieces of one server, opened together: keys, authentication, admission, fairness, streams, delegation.

use std::path::PathBuf;
use std::sync::Arc;

use crate::admission::Admission;
use crate::aggregation::Delegation;
use crate::authn::Authenticator;
use crate::authn::tokens::Tokens;
use crate::authz::Authorizer;
use crate::pki::{Pki, PkiError};
use crate::serve::fairness::{Fairness, Limits};
use crate::stream::Streams;
use crate::view::View;

/// See the module.
#[derive(Debug)]
pub struct Edges {
    /// The cluster's keys.
    pub pki: Pki,
    /// Who asks.
    pub authenticator: Authenticator,
    /// What may be written.
    pub admission: Admission,
    /// How much of it.
    pub fairness: Fairness,
    /// exec, attach, port-forward, logs, proxies.
    pub streams: Streams,
    /// Extension API servers.
    pub delegation: Delegation,
}

impl Edges {
    /// Opens all pieces on `view`; keys live in `pki_dir`, or in memory. `controllers` says that
    /// somebody makes service accounts.
    ///
    /// # Errors
    /// When keys cannot be made or read.
    pub fn open(
        pki_dir: Option<&PathBuf>,
        view: &Arc<dyn View>,
        authorizer: &Authorizer,
        controllers: bool,
    ) -> Result<Self, PkiError> {
        let pki = Pki::open(pki_dir.map(PathBuf::as_path))?;
        let tokens = Tokens::new(pki.token_signer()?, view.clone());
        let authenticator = Authenticator { tokens: Arc::new(tokens), authorizer: authorizer.clone() };
        let kubelet = pki.kubelet_client()?;
        let front = pki.front_proxy_client()?;
        Ok(Self {
            admission: Admission::new(view.clone(), authorizer.clone(), controllers),
            fairness: Fairness::new(Limits::default()),
            streams: Streams::new(view.clone(), pki.ca_pem(), &kubelet),
            delegation: Delegation::new(view.clone(), front),
            authenticator,
            pki,
        })
    }
}
