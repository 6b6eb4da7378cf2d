//! What a poller says when it ends: all that the controller hears of a registry that a tenant chose. Pure.
//!
//! The controller hears more than the tenant who has it ask, and what it hears ends in conditions and names. So an answer is a digest or one
//! word of a list, and no text of a registry fits into it. Whoever runs a pod of that namespace can have it say anything else: that is none.

use std::fmt;

use http::StatusCode;

/// What a poll comes to.
pub(crate) type Answer = Result<Digest, Reason>;

/// No answer is as long.
const LONGEST: usize = 100;

/// Names an image: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest(String);

impl Digest {
    /// The digest that `text` is; none when it is anything else.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        let sound = digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        sound.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a registry's answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The image's address, or one that its registry leads to.
    Address,
    /// A certificate that nobody vouches for.
    Certificate,
    /// No connection.
    Connect,
    /// Something that is not HTTP.
    Protocol,
    /// Nothing at all.
    Silent,
    /// Answers that took too long together.
    Late,
    /// A refusal.
    Status(StatusCode),
    /// A refusal of the token service.
    Credentials,
    /// Redirections without an end, or to what is not fetched.
    Redirects,
    /// A manifest that no image has.
    Large,
    /// Certificates or proxies that cannot be used.
    Setup,
    /// Anything but a manifest.
    Manifest,
}

/// Reasons, their words, and what people are told.
const KNOWN: [(Reason, &str, &str); 11] = [
    (Reason::Address, "Address", "its address, or one that it leads to, is not that of an image in a registry"),
    (Reason::Certificate, "Certificate", "its certificate is not trusted; name its authority in certConfigMap"),
    (Reason::Connect, "Connect", "cannot connect"),
    (Reason::Protocol, "Protocol", "it does not answer in HTTP"),
    (Reason::Silent, "Silent", "it does not answer"),
    (Reason::Late, "Late", "it takes too long"),
    (Reason::Credentials, "Credentials", "its token service refuses; check the name and password in secretRef"),
    (Reason::Redirects, "Redirects", "it leads elsewhere without an end"),
    (Reason::Large, "Large", "its answer is larger than any manifest"),
    (Reason::Setup, "Setup", "the certificates or the proxy on the way to it cannot be used"),
    (Reason::Manifest, "Manifest", "its answer is not a manifest"),
];

/// Followed by three digits.
const STATUS: &str = "Status ";

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Status(status) = self {
            return write!(f, "it answers {status}");
        }
        f.write_str(KNOWN.iter().find(|(reason, ..)| reason == self).map_or("", |(.., told)| *told))
    }
}

/// As a termination message.
pub(crate) fn write(answer: &Answer) -> String {
    match answer {
        Ok(digest) => digest.to_string(),
        Err(Reason::Status(status)) => format!("{STATUS}{}", status.as_u16()),
        Err(reason) => KNOWN.iter().find(|(known, ..)| known == reason).map_or("", |(_, word, _)| *word).to_owned(),
    }
}

/// The answer that a termination message is; none when no poller says that.
pub(crate) fn read(message: &str) -> Option<Answer> {
    if message.len() > LONGEST {
        return None;
    }
    if let Some(digits) = message.strip_prefix(STATUS) {
        return StatusCode::from_bytes(digits.as_bytes()).ok().map(|status| Err(Reason::Status(status)));
    }
    let known = || KNOWN.iter().find(|(_, word, _)| *word == message).map(|(reason, ..)| Err(*reason));
    Digest::of(message).map(Ok).or_else(known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn written_answers_are_read_back() {
        let digest = Digest::of(&format!("sha256:{}", "0af".repeat(22).split_at(64).0)).unwrap();
        let refusals = [StatusCode::UNAUTHORIZED, StatusCode::from_u16(599).unwrap()].map(Reason::Status);
        let reasons = KNOWN.iter().map(|(reason, ..)| *reason).chain(refusals);
        for answer in reasons.map(Err).chain([Ok(digest)]) {
            assert_eq!(read(&write(&answer)), Some(answer));
        }
        assert_eq!(Reason::Status(StatusCode::UNAUTHORIZED).to_string(), "it answers 401 Unauthorized");
    }

    #[test]
    fn malformed_answers_are_ignored() {
        let digits = "a".repeat(64);
        for message in [
            String::new(),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{digits}a"),
            format!("sha256:{}", "A".repeat(64)),
            format!("sha256:{digits}\n"),
            format!("sha512:{digits}"),
            format!("\u{1b}[2Jsha256:{digits}"),
            format!("sha256:{}/..", &digits[3..]),
            "Status 401 Unauthorized".to_owned(),
            "Status 4".to_owned(),
            "connect".to_owned(),
            "a".repeat(1 << 20),
        ] {
            assert_eq!(read(&message), None, "{message:?}");
        }
    }

    proptest! {
        /// Whatever the pod says, nothing of it goes on but a digest or a sentence of ours.
        #[test]
        fn any_message_is_a_digest_or_a_known_reason_or_ignored(message in "(sha256:)?[0-9a-f]{60,66}|Status [0-9]{0,4}|.{0,120}") {
            match read(&message) {
                Some(Ok(digest)) => prop_assert!(digest.to_string() == message && message.len() == 71),
                Some(Err(Reason::Status(status))) => prop_assert_eq!(message, format!("Status {}", status.as_u16())),
                Some(Err(reason)) => prop_assert!(KNOWN.iter().any(|(known, word, _)| *known == reason && *word == message)),
                None => {}
            }
        }
    }
}
