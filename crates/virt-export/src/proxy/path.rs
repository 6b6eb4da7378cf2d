//! Which export a path is about. Pure.

use axum::http::Uri;

/// An export, and what is asked of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Path and query.
    pub(super) rest: String,
}

/// What `/api/export.kubevirt.io/VERSION/namespaces/NAMESPACE/virtualmachineexports/NAME/...` says.
pub(super) fn parse(uri: &Uri) -> Option<Place> {
    let rest = uri.path().strip_prefix("/api/export.kubevirt.io/")?;
    let (version, rest) = rest.split_once("/namespaces/")?;
    let (namespace, rest) = rest.split_once("/virtualmachineexports/")?;
    let (name, rest) = rest.split_once('/')?;
    let known = matches!(version, "v1" | "v1beta1" | "v1alpha1");
    // They become a host's name.
    let plain = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    (known && plain(namespace) && plain(name)).then(|| Place {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        rest: format!("/{rest}{query}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let check = |path: &str, expect: Option<(&str, &str, &str)>| {
            let found = parse(&path.parse().unwrap());
            let found = found.as_ref().map(|p| (p.namespace.as_str(), p.name.as_str(), p.rest.as_str()));
            assert_eq!(found, expect, "{path}");
        };
        let base = "/api/export.kubevirt.io/v1/namespaces/ns/virtualmachineexports";
        check(&format!("{base}/e/volumes/a/disk.img?x=1"), Some(("ns", "e", "/volumes/a/disk.img?x=1")));
        check("/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/e/", Some(("ns", "e", "/")));
        check(&format!("{base}/e"), None);
        check(&format!("{base}//volumes"), None);
        check("/api/export.kubevirt.io/v9/namespaces/ns/virtualmachineexports/e/x", None);
        check("/api/export.kubevirt.io/v1/namespaces/n:s/virtualmachineexports/e/x", None);
        check("/healthz", None);
    }
}
