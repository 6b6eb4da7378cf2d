//! Signing and checking of ES256 JSON web tokens with the server's own key.
//!
//! Guarantees: only ES256 is accepted (a token cannot choose its algorithm); claims are returned only after the signature
//! was checked; times are checked with no leeway backwards and ten seconds forwards.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};

/// Why a token was not accepted.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenError {
    /// Not a JWT, or not one of ours.
    #[error("invalid bearer token")]
    Malformed,
    /// Signed by somebody else.
    #[error("invalid bearer token, signature does not match")]
    Signature,
    /// Past `exp`.
    #[error("service account token has expired")]
    Expired,
    /// Before `nbf`.
    #[error("service account token is not valid yet")]
    NotYet,
    /// Meant for somebody else.
    #[error("invalid bearer token, Token audiences do not match")]
    Audience,
    /// Issued by somebody else.
    #[error("invalid bearer token, issuer does not match")]
    Issuer,
    /// The service account, pod, secret or node it is bound to is gone or another one.
    #[error("service account token has been invalidated")]
    Revoked,
    /// The key cannot be used.
    #[error("signing key cannot be used")]
    Key,
}

/// A P-256 key that signs and checks.
pub struct Signer {
    pair: EcdsaKeyPair,
    key_id: String,
    random: SystemRandom,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Signer {
    /// A signer from a PKCS#8 document (DER).
    ///
    /// # Errors
    /// When the document is not a P-256 key.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, TokenError> {
        let random = SystemRandom::new();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random).map_err(|_| TokenError::Key)?;
        let digest = ring::digest::digest(&ring::digest::SHA256, pair.public_key().as_ref());
        Ok(Self { key_id: URL_SAFE_NO_PAD.encode(digest.as_ref()), pair, random })
    }

    /// A fresh key, for servers that keep no state.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<(Self, Vec<u8>), TokenError> {
        let random = SystemRandom::new();
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).map_err(|_| TokenError::Key)?;
        Ok((Self::from_pkcs8(document.as_ref())?, document.as_ref().to_vec()))
    }

    /// The signed compact form of some claims.
    ///
    /// # Errors
    /// When signing fails.
    pub fn sign(&self, claims: &Value) -> Result<String, TokenError> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let text =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.pair.sign(&self.random, text.as_bytes()).map_err(|_| TokenError::Key)?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    /// The claims of a token of ours that is valid at `now` (seconds since the epoch).
    ///
    /// # Errors
    /// When anything about it is wrong.
    pub fn verify(&self, token: &str, now: i64) -> Result<Value, TokenError> {
        let (text, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = text.split_once('.').ok_or(TokenError::Malformed)?;
        if part(header)?.get("alg").and_then(Value::as_str) != Some("ES256") {
            return Err(TokenError::Malformed);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref())
            .verify(text.as_bytes(), &signature)
            .map_err(|_| TokenError::Signature)?;
        let claims = part(payload)?;
        let time = |name: &str| claims.get(name).and_then(Value::as_i64);
        if time("exp").is_none_or(|exp| exp <= now) {
            return Err(TokenError::Expired);
        }
        if time("nbf").is_some_and(|nbf| nbf > now + 10) {
            return Err(TokenError::NotYet);
        }
        Ok(claims)
    }

    /// The public key as a JSON web key set, for `/openid/v1/jwks`.
    #[must_use]
    pub fn key_set(&self) -> Value {
        // An uncompressed point: 0x04, x, y.
        let point = self.pair.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len().saturating_sub(1) / 2);
        json!({"keys": [{"use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.key_id,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)}]})
    }
}

fn part(text: &str) -> Result<Value, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_checked() {
        let (signer, _) = Signer::generate().unwrap();
        let (other, _) = Signer::generate().unwrap();
        let token = signer.sign(&json!({"exp": 100, "nbf": 50, "sub": "x"})).unwrap();
        assert_eq!(signer.verify(&token, 60).unwrap()["sub"], "x");
        let none = format!(
            "{}.{}.",
            URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
            URL_SAFE_NO_PAD.encode(r#"{"exp":100,"sub":"x"}"#)
        );
        let cases = [
            (token.clone(), 100, TokenError::Expired),
            (token.clone(), 10, TokenError::NotYet),
            (other.sign(&json!({"exp": 100})).unwrap(), 60, TokenError::Signature),
            (signer.sign(&json!({"sub": "x"})).unwrap(), 60, TokenError::Expired),
            (none, 60, TokenError::Malformed),
            ("a.b".into(), 60, TokenError::Malformed),
            (String::new(), 60, TokenError::Malformed),
            (format!("{token}x"), 60, TokenError::Malformed),
        ];
        for (token, now, expect) in cases {
            assert_eq!(signer.verify(&token, now).unwrap_err(), expect, "{token} at {now}");
        }
    }
}

#[cfg(test)]
mod properties {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    static KEY: LazyLock<Signer> = LazyLock::new(|| Signer::generate().unwrap().0);

    proptest! {
        /// Only what was signed is accepted.
        #[test]
        fn no_token_but_the_signed_one_is_accepted(noise in ".{0,200}|[A-Za-z0-9_-]{0,80}(\\.[A-Za-z0-9_-]{0,80}){0,3}", at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9_.-]") {
            prop_assert!(KEY.verify(&noise, 0).is_err());
            let claims = json!({"sub": "system:serviceaccount:a:b", "exp": 1000});
            let token = KEY.sign(&claims).unwrap();
            let at = at.index(token.len());
            let changed = format!("{}{letter}{}", &token[..at], &token[at + 1..]);
            let found = KEY.verify(&changed, 0);
            // The last letter of a part may stand for the same bytes as another.
            prop_assert!(found.is_err() || found.unwrap() == claims);
        }
    }
}
