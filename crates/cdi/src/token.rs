//! Tokens that say what was allowed: to upload into a claim, to clone one. JWTs signed with PS256, as CDI's are.
//!
//! cdi-apiserver signs, after it has asked whether the user may; who acts later verifies, and need not ask again.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{self, RsaKeyPair, UnparsedPublicKey};
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::{EncodePublicKey, LineEnding};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs1KeyDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::FromDer;

/// Issuer of tokens for uploads, and of the short-lived ones for clones.
pub const ISSUER_APISERVER: &str = "cdi-apiserver";
/// Issuer of the long-lived tokens for clones.
pub const ISSUER_CONTROLLER: &str = "cdi-deployment";
/// How long a token of cdi-apiserver is good for.
pub const LIFETIME: Duration = Duration::from_secs(300);
/// How far the clocks of two programs may be apart.
pub const LEEWAY: Duration = Duration::from_secs(10);
/// Secret with the key.
pub const SECRET: &str = "cdi-api-signing-key";
/// Key of the private key in it.
pub const PRIVATE: &str = "id_rsa";
/// Key of the public key in it.
pub const PUBLIC: &str = "id_rsa.pub";
const BITS: usize = 2048;

/// Why there is no token, or none that is good.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key cannot be used.
    #[error("the {0} key cannot be read")]
    Key(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// It could not be signed.
    #[error("the token cannot be signed")]
    Sign,
    /// Its form, signature or issuer is wrong.
    #[error("the token is not one of {0}")]
    Forged(String),
    /// It was good for a time.
    #[error("the token is not good at this time: it is from {from} until {until}")]
    Expired {
        /// Since when it is good.
        from: Timestamp,
        /// Until when.
        until: Timestamp,
    },
}

/// What is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Payload {
    /// `Upload` or `Clone`.
    pub operation: String,
    /// Name of the claim or the snapshot.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its resource.
    pub resource: Resource,
    /// What else is said, such as the target of a clone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

/// Words of [`Payload::operation`].
pub mod operation {
    pub const UPLOAD: &str = "Upload";
    pub const CLONE: &str = "Clone";
}

/// Group, version and plural of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// The group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural.
    pub resource: String,
}

impl Resource {
    /// Of its parts.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Resource { group: group.to_owned(), version: version.to_owned(), resource: resource.to_owned() }
    }

    /// PersistentVolumeClaims.
    pub fn claims() -> Self {
        Self::new("", "v1", "persistentvolumeclaims")
    }
}

#[derive(Serialize, Deserialize)]
struct Claims {
    #[serde(flatten)]
    payload: Payload,
    iss: String,
    iat: i64,
    nbf: i64,
    exp: i64,
}

/// A new private and public key, as PEM. Takes seconds.
///
/// # Errors
/// When the system has no randomness.
pub fn generate() -> Result<(String, String), Error> {
    let key =
        rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, BITS).map_err(|error| Error::Key("new", error.into()))?;
    let private = key.to_pkcs1_pem(LineEnding::LF).map_err(|error| Error::Key("private", error.into()))?;
    let public = key.to_public_key().to_public_key_pem(LineEnding::LF);
    Ok((private.to_string(), public.map_err(|error| Error::Key("public", error.into()))?))
}

/// Signs tokens.
pub struct Signer(RsaKeyPair);

impl Signer {
    /// With the private key of [`generate`].
    ///
    /// # Errors
    /// When it is not one.
    pub fn new(pem: &str) -> Result<Self, Error> {
        let der =
            PrivatePkcs1KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| Error::Key("private", error.into()))?;
        let pair = RsaKeyPair::from_der(der.secret_pkcs1_der());
        pair.map(Signer).map_err(|error| Error::Key("private", error.to_string().into()))
    }

    /// A token of `issuer` for `payload`.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn sign(&self, issuer: &str, payload: Payload, now: Timestamp, lifetime: Duration) -> Result<String, Error> {
        let now = now.as_second();
        let lifetime = i64::try_from(lifetime.as_secs()).map_err(|_| Error::Sign)?;
        let claims = Claims { payload, iss: issuer.to_owned(), iat: now, nbf: now, exp: now.saturating_add(lifetime) };
        let body = serde_json::to_vec(&claims).map_err(|_| Error::Sign)?;
        let mut token = BASE64_URL_SAFE_NO_PAD.encode(br#"{"alg":"PS256"}"#);
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(body, &mut token);
        let mut signature = vec![0; self.0.public().modulus_len()];
        let signed = self.0.sign(&signature::RSA_PSS_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature);
        signed.map_err(|_| Error::Sign)?;
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

/// Verifies tokens; cheap to clone.
#[derive(Clone, Debug)]
pub struct Verifier(UnparsedPublicKey<Vec<u8>>);

impl Verifier {
    /// With the public key of [`generate`].
    ///
    /// # Errors
    /// When it is not one.
    pub fn new(pem: &str) -> Result<Self, Error> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| Error::Key("public", error.into()))?;
        let (_, key) = x509_parser::x509::SubjectPublicKeyInfo::from_der(&der)
            .map_err(|error| Error::Key("public", error.to_string().into()))?;
        let key = key.subject_public_key.data.into_owned();
        Ok(Verifier(UnparsedPublicKey::new(&signature::RSA_PSS_2048_8192_SHA256, key)))
    }

    /// What `token` of `issuer` allows at `now`.
    ///
    /// # Errors
    /// When it is not of `issuer`, or its time is over.
    pub fn verify(&self, issuer: &str, token: &str, now: Timestamp) -> Result<Payload, Error> {
        let forged = || Error::Forged(issuer.to_owned());
        let (signed, signature) = token.rsplit_once('.').ok_or_else(forged)?;
        let (header, body) = signed.split_once('.').ok_or_else(forged)?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| forged());
        let header: serde_json::Value = serde_json::from_slice(&decode(header)?).map_err(|_| forged())?;
        if header["alg"] != "PS256" {
            return Err(forged());
        }
        self.0.verify(signed.as_bytes(), &decode(signature)?).map_err(|_| forged())?;
        let claims: Claims = serde_json::from_slice(&decode(body)?).map_err(|_| forged())?;
        if claims.iss != issuer {
            return Err(forged());
        }
        let moment = |second: i64| Timestamp::from_second(second).map_err(|_| forged());
        let (from, until) = (moment(claims.nbf)?, moment(claims.exp)?);
        let leeway = jiff::SignedDuration::try_from(LEEWAY).unwrap_or_default();
        if now + leeway < from || now - leeway > until {
            return Err(Error::Expired { from, until });
        }
        Ok(claims.payload)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_token_is_good_for_what_it_says_and_as_long_as_it_says() {
        let (private, public) = generate().unwrap();
        let (signer, verifier) = (Signer::new(&private).unwrap(), Verifier::new(&public).unwrap());
        let payload = Payload {
            operation: operation::UPLOAD.into(),
            name: "disk".into(),
            namespace: "ns".into(),
            resource: Resource::claims(),
            params: BTreeMap::new(),
        };
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let token = signer.sign(ISSUER_APISERVER, payload.clone(), start, LIFETIME).unwrap();
        let at = |token: &str, seconds: i64| {
            let now = start + SignedDuration::from_secs(seconds);
            verifier.verify(ISSUER_APISERVER, token, now).map_err(|error| matches!(error, Error::Expired { .. }))
        };
        assert_eq!(at(&token, 0), Ok(payload.clone()));
        assert_eq!(at(&token, 305), Ok(payload.clone()));
        assert_eq!(at(&token, 311), Err(true));
        assert_eq!(at(&token, -11), Err(true));
        let other = signer.sign(ISSUER_CONTROLLER, payload, start, LIFETIME).unwrap();
        assert_eq!(at(&other, 0), Err(false));
        let (head, rest) = token.split_once('.').unwrap();
        let (body, signature) = rest.split_once('.').unwrap();
        let mut claims = BASE64_URL_SAFE_NO_PAD.decode(body).unwrap();
        claims[20] ^= 1;
        let changed = format!("{head}.{}.{signature}", BASE64_URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(at(&changed, 0), Err(false));
        let none = BASE64_URL_SAFE_NO_PAD.encode(br#"{"alg":"none"}"#);
        assert_eq!(at(&format!("{none}.{body}."), 0), Err(false));
        assert_eq!(at("", 0), Err(false));
    }
}

#[cfg(test)]
mod properties {
    use std::sync::LazyLock;

    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    static KEYS: LazyLock<(Signer, Verifier)> = LazyLock::new(|| {
        let (private, public) = generate().unwrap();
        (Signer::new(&private).unwrap(), Verifier::new(&public).unwrap())
    });

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Only what was signed is accepted, letter by letter.
        #[test]
        fn no_token_but_the_signed_one_is_accepted(noise in ".{0,200}|[A-Za-z0-9_-]{0,80}(\\.[A-Za-z0-9_-]{0,80}){0,3}", at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9_.-]") {
            let (signer, verifier) = &*KEYS;
            let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            prop_assert!(verifier.verify(ISSUER_APISERVER, &noise, now).is_err());
            let payload = Payload { operation: operation::UPLOAD.into(), name: "disk".into(), namespace: "ns".into(), resource: Resource::claims(), params: BTreeMap::new() };
            let token = signer.sign(ISSUER_APISERVER, payload.clone(), now, LIFETIME).unwrap();
            let at = at.index(token.len());
            let changed = format!("{}{letter}{}", &token[..at], &token[at + 1..]);
            let found = verifier.verify(ISSUER_APISERVER, &changed, now + SignedDuration::from_secs(1));
            // The last letter of a part may stand for the same bytes as another.
            prop_assert!(found.is_err() || changed == token || found.unwrap() == payload);
        }
    }
}
