//! Certificates for the requests of others, signed by the cluster's authority.

use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use super::{Pki, PkiError};

/// A year, unless less was asked for.
const LONGEST: i64 = 365 * 24 * 3600;
/// Tolerance for clocks that differ.
const EARLIER: u64 = 300;

fn key_usage(name: &str) -> Option<KeyUsagePurpose> {
    Some(match name {
        "signing" | "digital signature" => KeyUsagePurpose::DigitalSignature,
        "content commitment" => KeyUsagePurpose::ContentCommitment,
        "key encipherment" => KeyUsagePurpose::KeyEncipherment,
        "key agreement" => KeyUsagePurpose::KeyAgreement,
        "data encipherment" => KeyUsagePurpose::DataEncipherment,
        "encipher only" => KeyUsagePurpose::EncipherOnly,
        "decipher only" => KeyUsagePurpose::DecipherOnly,
        _ => return None,
    })
}

fn extended_usage(name: &str) -> Option<ExtendedKeyUsagePurpose> {
    Some(match name {
        "any" => ExtendedKeyUsagePurpose::Any,
        "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
        "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
        "code signing" => ExtendedKeyUsagePurpose::CodeSigning,
        "email protection" | "s/mime" => ExtendedKeyUsagePurpose::EmailProtection,
        "timestamping" => ExtendedKeyUsagePurpose::TimeStamping,
        "ocsp signing" => ExtendedKeyUsagePurpose::OcspSigning,
        _ => return None,
    })
}

impl Pki {
    /// A certificate of the cluster's authority for what `request` asks, for these usages and at most so many seconds.
    /// It is never an authority itself.
    ///
    /// # Errors
    /// When the authority's key cannot be used.
    pub fn sign(
        &self,
        mut request: CertificateSigningRequestParams,
        usages: &[String],
        seconds: Option<i64>,
    ) -> Result<String, PkiError> {
        let failed = |source| PkiError::Issue { name: "signing request".to_owned(), source };
        let params = &mut request.params;
        #[expect(
            clippy::disallowed_methods,
            reason = "certificates are judged by the wall clock of whoever is shown them"
        )]
        let now = std::time::SystemTime::now();
        let lifetime = u64::try_from(seconds.unwrap_or(LONGEST).clamp(600, LONGEST)).unwrap_or_default();
        params.not_before = (now - std::time::Duration::from_secs(EARLIER)).into();
        params.not_after = (now + std::time::Duration::from_secs(lifetime)).into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages.clear();
        for usage in usages.iter().filter_map(|usage| key_usage(usage)) {
            if !params.key_usages.contains(&usage) {
                params.key_usages.push(usage);
            }
        }
        params.extended_key_usages = usages.iter().filter_map(|usage| extended_usage(usage)).collect();
        params.use_authority_key_identifier_extension = true;
        let authority = self.authority();
        let key = KeyPair::from_pem(&authority.key).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&authority.certificate, key).map_err(failed)?;
        request.signed_by(&issuer).map(|certificate| certificate.pem()).map_err(failed)
    }
}
