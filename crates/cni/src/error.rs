//! Why a plugin did not do what it was asked, as the CNI specification wants to be told.

use std::error::Error as _;

use serde_json::{Value, json};

/// A failure; its code is that of the specification.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A version that this program does not speak.
    #[error("cniVersion {asked:?} is not supported: set one of {}", known.join(", "))]
    Version {
        /// What the configuration names.
        asked: String,
        /// Those that it does.
        known: &'static [&'static str],
    },
    /// The runtime did not say what it has to.
    #[error("{variable} {why}")]
    Environment {
        /// Which variable.
        variable: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The configuration could not be read.
    #[error("cannot read the configuration")]
    Read(#[source] std::io::Error),
    /// It is not what it has to be.
    #[error("the configuration cannot be decoded")]
    Decode(#[source] serde_json::Error),
    /// A field has a value that cannot act.
    #[error("{field} is {value}: {remedy}")]
    Field {
        /// Which field.
        field: String,
        /// What it says, as JSON.
        value: String,
        /// What to write instead.
        remedy: String,
    },
    /// A link, address or route.
    #[error(transparent)]
    Link(#[from] net::link::Error),
    /// The network namespace of the container.
    #[error("cannot use the network namespace {path}")]
    Namespace {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: sys::Error,
    },
    /// Rules of nftables.
    #[error("cannot {what}")]
    Rules {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: net::nft::Error,
    },
    /// A file or a process.
    #[error("cannot {what}")]
    Io {
        /// What, and with which.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The node cannot do it, or has something in the way.
    #[error("{0}")]
    Node(String),
    /// CHECK found something else than ADD made.
    #[error("{0}")]
    Changed(String),
    /// The plugin for addresses said so itself.
    #[error("the plugin {kind:?} for addresses failed: {}", answer["msg"].as_str().unwrap_or_default())]
    Delegate {
        /// Its type.
        kind: String,
        /// Its own answer.
        answer: Value,
    },
}

impl Error {
    /// A refusal of what the configuration has in `field`.
    pub(crate) fn field(field: impl Into<String>, value: &Value, remedy: impl Into<String>) -> Self {
        Error::Field { field: field.into(), value: value.to_string(), remedy: remedy.into() }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    fn code(&self) -> u64 {
        match self {
            Error::Version { .. } => 1,
            Error::Environment { .. } => 4,
            Error::Read(_) => 5,
            Error::Decode(_) => 6,
            Error::Field { .. } => 7,
            // From 100 on a plugin's own.
            Error::Changed(_) => 100,
            Error::Delegate { answer, .. } => answer["code"].as_u64().unwrap_or(999),
            _ => 999,
        }
    }

    /// What is written for the runtime.
    pub(crate) fn answer(&self, version: &str) -> Value {
        let causes = chain(self);
        let message = self.to_string();
        let details = match self {
            Error::Delegate { answer, .. } => answer["details"].as_str().unwrap_or_default().to_owned(),
            _ => causes.strip_prefix(&message).unwrap_or_default().trim_start_matches(": ").to_owned(),
        };
        json!({ "cniVersion": version, "code": self.code(), "msg": message, "details": details })
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_gets_codes_of_the_specification() {
        let check = |error: Error, code: u64, message: &str, details: &str| {
            let expect = json!({ "cniVersion": "1.0.0", "code": code, "msg": message, "details": details });
            assert_eq!(error.answer("1.0.0"), expect);
        };
        let absent = || std::io::Error::from(std::io::ErrorKind::NotFound);
        check(Error::io("read x")(absent()), 999, "cannot read x", "entity not found");
        check(Error::field("vlan", &json!(5000), "set 0 to 4094"), 7, "vlan is 5000: set 0 to 4094", "");
        let variable = Error::Environment { variable: "CNI_IFNAME", why: "is not set".to_owned() };
        check(variable, 4, "CNI_IFNAME is not set", "");
        check(Error::Changed("net1 is down".to_owned()), 100, "net1 is down", "");
        let answer = json!({ "code": 11, "msg": "later", "details": "no lease" });
        let message = "the plugin \"dhcp\" for addresses failed: later";
        check(Error::Delegate { kind: "dhcp".to_owned(), answer }, 11, message, "no lease");
    }
}
