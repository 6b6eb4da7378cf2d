//! Who may upload: the upload proxy, and the one pod that copies into this claim. Both say so in their certificates.
//!
//! A copying pod's certificate lies beside the claim that it reads, where others may read it: it opens the server of its own target only.

use api::cdi::constants::label;
use kit::certs::Identity;

use crate::operator::certificates::UPLOAD_PROXY;

/// Whom a server expects, by the names in their certificates.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    /// The upload proxy's.
    pub(super) proxy: String,
    /// That of the pod that copies into this claim; empty when there is none.
    pub(super) cloner: String,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Proxy,
    Cloner,
}

impl Clients {
    /// Which of them `who` is, if one.
    pub(super) fn of(&self, who: &Identity) -> Option<Client> {
        if who.role == UPLOAD_PROXY && who.name == self.proxy {
            return Some(Client::Proxy);
        }
        (who.role == label::CLONER && !self.cloner.is_empty() && who.name == self.cloner).then_some(Client::Cloner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_name_and_the_role_that_are_expected() {
        #[track_caller]
        fn check(cloner: &str, name: &str, role: &str, expect: Option<Client>) {
            let clients = Clients { proxy: "proxy".to_owned(), cloner: cloner.to_owned() };
            let who = Identity { name: name.to_owned(), role: role.to_owned(), ..Identity::default() };
            assert_eq!(clients.of(&who), expect);
        }
        check("copy-to-u", "proxy", UPLOAD_PROXY, Some(Client::Proxy));
        check("copy-to-u", "copy-to-u", label::CLONER, Some(Client::Cloner));
        check("copy-to-u", "proxy", label::CLONER, None);
        check("copy-to-u", "copy-to-v", label::CLONER, None);
        check("copy-to-u", "copy-to-u", UPLOAD_PROXY, None);
        check("", "", label::CLONER, None);
        check("copy-to-u", "proxy", "", None);
    }
}
