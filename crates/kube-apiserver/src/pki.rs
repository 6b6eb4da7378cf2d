//! The cluster's keys and certificates: made once, kept under a directory, renewed before they expire.
//!
//! Guarantees: asking twice yields the same certificate unless names changed or thirty days of life are left; keys are
//! written with mode 0600 and files appear whole or not at all.

mod signing;

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::authn::jwt::Signer;

const DAY: i64 = 86_400;

/// Why keys could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file of the PKI directory.
    #[error("cannot access {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A certificate could not be built.
    #[error("cannot issue certificate {name}")]
    Issue {
        /// File stem.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A key file holds something else.
    #[error("{name} does not hold a usable key; remove it to have a new one made")]
    Unusable {
        /// File stem.
        name: String,
    },
}

/// A certificate chain and its key, PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Certificate.
    pub certificate: String,
    /// PKCS#8 key.
    pub key: String,
}

/// The certificate authorities of a cluster and what they issue.
#[derive(Debug)]
pub struct Pki {
    dir: Option<PathBuf>,
    ca: Pair,
    front_proxy_ca: Pair,
}

enum Usage<'a> {
    Server(&'a [String]),
    Client,
}

impl Pki {
    /// Opens or creates the authorities under `dir`, or in memory.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: Option<&Path>) -> Result<Self, PkiError> {
        if let Some(dir) = dir {
            std::fs::create_dir_all(dir).map_err(|source| PkiError::File { path: dir.to_owned(), source })?;
        }
        let authority = |stem: &str, name: &str| {
            kept(
                dir,
                stem,
                |_| true,
                || {
                    let mut params = base(stem, name, "", 3650)?;
                    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
                    params.key_usages =
                        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
                    let issue = |source| PkiError::Issue { name: stem.to_owned(), source };
                    let key = KeyPair::generate().map_err(issue)?;
                    let certificate = params.self_signed(&key).map_err(issue)?;
                    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
                },
            )
        };
        Ok(Self {
            ca: authority("ca", "ferrovirt-ca")?,
            front_proxy_ca: authority("front-proxy-ca", "ferrovirt-front-proxy-ca")?,
            dir: dir.map(Path::to_owned),
        })
    }

    /// The cluster's authority with its key.
    fn authority(&self) -> &Pair {
        &self.ca
    }

    /// PEM of the cluster CA.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca.certificate
    }

    /// PEM of the front-proxy CA, which extension servers trust for `X-Remote-*` headers.
    #[must_use]
    pub fn front_proxy_ca_pem(&self) -> &str {
        &self.front_proxy_ca.certificate
    }

    /// A server certificate for names and addresses.
    ///
    /// # Errors
    /// When it cannot be issued or stored.
    pub fn server(&self, stem: &str, common_name: &str, organization: &str, sans: &[String]) -> Result<Pair, PkiError> {
        self.issue(&self.ca, stem, common_name, organization, &Usage::Server(sans))
    }

    /// A client certificate of the cluster CA.
    ///
    /// # Errors
    /// When it cannot be issued or stored.
    pub fn client(&self, stem: &str, common_name: &str, organization: &str) -> Result<Pair, PkiError> {
        self.issue(&self.ca, stem, common_name, organization, &Usage::Client)
    }

    /// The API server's own serving certificate.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn api_server(&self, sans: &[String]) -> Result<Pair, PkiError> {
        self.server("apiserver", "kube-apiserver", "", sans)
    }

    /// The administrator's client certificate.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn admin(&self) -> Result<Pair, PkiError> {
        self.client("admin", "kubernetes-admin", "system:masters")
    }

    /// The client certificate of a node's kubelet.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn kubelet(&self, node: &str) -> Result<Pair, PkiError> {
        self.client(&format!("kubelet-{node}"), &format!("system:node:{node}"), "system:nodes")
    }

    /// The serving certificate of a node's kubelet.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn kubelet_server(&self, node: &str, sans: &[String]) -> Result<Pair, PkiError> {
        self.server(&format!("kubelet-{node}-server"), &format!("system:node:{node}"), "system:nodes", sans)
    }

    /// The client certificate of what enforces network policies on a node.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn network_agent(&self, node: &str) -> Result<Pair, PkiError> {
        self.client(&format!("network-agent-{node}"), "system:network-agent", "")
    }

    /// The client certificate of the built-in controllers.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn controllers(&self) -> Result<Pair, PkiError> {
        self.client("controllers", "system:kube-controller-manager", "")
    }

    /// What the API server shows to kubelets.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn kubelet_client(&self) -> Result<Pair, PkiError> {
        self.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "")
    }

    /// The hosts a node's kubelet was given a serving certificate for when the node was made; None when this authority made
    /// no such node.
    #[must_use]
    pub fn hosts_of(&self, node: &str) -> Option<Vec<String>> {
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            !name.is_empty() && name.len() <= 253 && name.chars().all(plain) && !name.starts_with('.')
        };
        let file = self.dir.as_deref().filter(|_| is_name(node))?.join(format!("kubelet-{node}-server.crt"));
        names_of(&std::fs::read_to_string(file).ok()?).map(|(_, hosts)| hosts)
    }

    /// What the API server shows to extension API servers, signed by the front-proxy CA.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn front_proxy_client(&self) -> Result<Pair, PkiError> {
        self.issue(&self.front_proxy_ca, "front-proxy-client", "front-proxy-client", "", &Usage::Client)
    }

    /// The key that signs service-account tokens.
    ///
    /// # Errors
    /// When it cannot be read or made.
    pub fn token_signer(&self) -> Result<Signer, PkiError> {
        let unusable = || PkiError::Unusable { name: "sa.key".to_owned() };
        let path = self.dir.as_deref().map(|d| d.join("sa.key"));
        if let Some(pem) = path.as_deref().and_then(|p| std::fs::read_to_string(p).ok()) {
            let key = KeyPair::from_pem(&pem).map_err(|_| unusable())?;
            return Signer::from_pkcs8(key.serialized_der()).map_err(|_| unusable());
        }
        let key = KeyPair::generate().map_err(|source| PkiError::Issue { name: "sa.key".to_owned(), source })?;
        if let Some(path) = path {
            write(&path, &key.serialize_pem(), 0o600)?;
        }
        Signer::from_pkcs8(key.serialized_der()).map_err(|_| unusable())
    }

    fn issue(
        &self,
        by: &Pair,
        stem: &str,
        common_name: &str,
        organization: &str,
        usage: &Usage<'_>,
    ) -> Result<Pair, PkiError> {
        let wanted: &[String] = match usage {
            Usage::Server(sans) => sans,
            Usage::Client => &[],
        };
        let fits = |pair: &Pair| {
            names_of(&pair.certificate)
                .is_some_and(|(cn, names)| cn == common_name && wanted.iter().all(|w| names.contains(w)))
                && organization_of(&pair.certificate).is_some_and(|found| found == organization)
                && chains(&by.certificate, &pair.certificate)
        };
        kept(self.dir.as_deref(), stem, fits, || {
            let issue_error = |source| PkiError::Issue { name: stem.to_owned(), source };
            let mut params = base(stem, common_name, organization, 365)?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.use_authority_key_identifier_extension = true;
            params.extended_key_usages = match usage {
                Usage::Server(sans) => {
                    params.subject_alt_names =
                        CertificateParams::new(sans.to_vec()).map_err(issue_error)?.subject_alt_names;
                    vec![ExtendedKeyUsagePurpose::ServerAuth]
                }
                Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            };
            let key = KeyPair::generate().map_err(issue_error)?;
            let ca_key = KeyPair::from_pem(&by.key).map_err(issue_error)?;
            let issuer = Issuer::from_ca_cert_pem(&by.certificate, ca_key).map_err(issue_error)?;
            let certificate = params.signed_by(&key, &issuer).map_err(issue_error)?;
            Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
        })
    }
}

fn base(stem: &str, common_name: &str, organization: &str, days: i64) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::<String>::new())
        .map_err(|source| PkiError::Issue { name: stem.to_owned(), source })?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    // An hour of tolerance for clocks that differ.
    #[expect(clippy::disallowed_methods, reason = "certificates are judged by the wall clock of whoever is shown them")]
    let now = std::time::SystemTime::now();
    params.not_before = (now - std::time::Duration::from_secs(3600)).into();
    params.not_after = (now + std::time::Duration::from_secs(u64::try_from(days * DAY).unwrap_or_default())).into();
    Ok(params)
}

/// Reads `<stem>.crt` and `<stem>.key` when they are good for another thirty days, else makes and writes them.
fn kept(
    dir: Option<&Path>,
    stem: &str,
    fits: impl Fn(&Pair) -> bool,
    make: impl FnOnce() -> Result<Pair, PkiError>,
) -> Result<Pair, PkiError> {
    let Some(dir) = dir else { return make() };
    let (crt, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
    if let (Ok(certificate), Ok(key)) = (std::fs::read_to_string(&crt), std::fs::read_to_string(&key)) {
        let pair = Pair { certificate, key };
        if lives(&pair.certificate) && fits(&pair) && KeyPair::from_pem(&pair.key).is_ok() {
            return Ok(pair);
        }
    }
    let pair = make()?;
    write(&key, &pair.key, 0o600)?;
    write(&crt, &pair.certificate, 0o644)?;
    Ok(pair)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let fail = |source| PkiError::File { path: path.to_owned(), source };
    let partial = path.with_extension("partial");
    let _ = std::fs::remove_file(&partial);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
    std::fs::rename(&partial, path).map_err(fail)
}

fn parsed<T>(pem: &str, read: impl FnOnce(&x509_parser::certificate::X509Certificate<'_>) -> Option<T>) -> Option<T> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    read(&pem.parse_x509().ok()?)
}

fn lives(pem: &str) -> bool {
    let now = kit::clock::now().as_second();
    parsed(pem, |c| Some(c.validity().not_after.timestamp() > now + 30 * DAY)).unwrap_or(false)
}

fn chains(ca: &str, leaf: &str) -> bool {
    parsed(ca, |ca| {
        parsed(leaf, |leaf| {
            let same_name = leaf.issuer().as_raw() == ca.subject().as_raw();
            Some(same_name && leaf.verify_signature(Some(ca.public_key())).is_ok())
        })
    })
    .unwrap_or(false)
}

fn names_of(pem: &str) -> Option<(String, Vec<String>)> {
    use x509_parser::extensions::GeneralName;
    parsed(pem, |c| {
        let common_name = c.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let mut names = Vec::new();
        if let Ok(Some(san)) = c.subject_alternative_name() {
            for name in &san.value.general_names {
                match name {
                    GeneralName::DNSName(dns) => names.push((*dns).to_owned()),
                    GeneralName::IPAddress(bytes) => {
                        if let Ok(four) = <[u8; 4]>::try_from(*bytes) {
                            names.push(std::net::Ipv4Addr::from(four).to_string());
                        } else if let Ok(sixteen) = <[u8; 16]>::try_from(*bytes) {
                            names.push(std::net::Ipv6Addr::from(sixteen).to_string());
                        }
                    }
                    _ => {}
                }
            }
        }
        Some((common_name, names))
    })
}

/// The subject's organization, empty when there is none.
fn organization_of(pem: &str) -> Option<String> {
    parsed(pem, |c| match c.subject().iter_organization().next() {
        Some(organization) => organization.as_str().ok().map(str::to_owned),
        None => Some(String::new()),
    })
}

/// A kubeconfig for one user with embedded credentials.
#[must_use]
pub fn kubeconfig(server: &str, ca_pem: &str, user: &str, pair: &Pair) -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: ferrovirt\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    \
         client-key-data: {}\ncontexts:\n- name: ferrovirt\n  context:\n    cluster: ferrovirt\n    user: {user}\n\
         current-context: ferrovirt\n",
        encode(ca_pem),
        encode(&pair.certificate),
        encode(&pair.key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_twice_changes_nothing_and_new_names_renew() {
        let dir = tempfile::tempdir().unwrap();
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let first = Pki::open(Some(dir.path())).unwrap().api_server(&names(&["a", "127.0.0.1"])).unwrap();
        let again = Pki::open(Some(dir.path())).unwrap().api_server(&names(&["127.0.0.1", "a"])).unwrap();
        assert_eq!(first.certificate, again.certificate);
        let wider = Pki::open(Some(dir.path())).unwrap().api_server(&names(&["a", "b"])).unwrap();
        assert_ne!(first.certificate, wider.certificate);
        let user = crate::authn::certificate::user_of(&der(&Pki::open(None).unwrap().kubelet("n1").unwrap())).unwrap();
        assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("system:node:n1", "system:nodes"));
    }

    #[test]
    fn the_client_of_kubelets_is_in_no_group_also_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(Some(dir.path())).unwrap();
        let old = pki.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters").unwrap();
        let new = pki.kubelet_client().unwrap();
        assert_ne!(old.certificate, new.certificate);
        let user = crate::authn::certificate::user_of(&der(&new)).unwrap();
        assert_eq!(user.groups, ["system:authenticated"]);
    }

    #[test]
    fn the_hosts_of_a_node_are_those_it_was_made_with() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(Some(dir.path())).unwrap();
        pki.kubelet_server("n1", &["n1".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        assert_eq!(pki.hosts_of("n1").unwrap(), ["n1", "10.0.0.1"]);
        assert_eq!((pki.hosts_of("n2"), pki.hosts_of("../n1"), pki.hosts_of("")), (None, None, None));
    }

    fn der(pair: &Pair) -> Vec<u8> {
        x509_parser::pem::parse_x509_pem(pair.certificate.as_bytes()).unwrap().1.contents
    }
}
