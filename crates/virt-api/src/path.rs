//! The path of a request, parsed once: what is authorised is exactly what is served.

use http::Method;
pub use kit::gate::Question;

/// The group this server adds to the API.
pub const GROUP: &str = "subresources.kubevirt.io";
/// Its versions, the preferred one first.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

/// What a path below `/apis/subresources.kubevirt.io/VERSION` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `version`, `healthz`, `guestfs`, …: not about an object.
    Cluster {
        /// The last word.
        name: String,
    },
    /// `namespaces/NS/expand-vm-spec`.
    Namespace {
        /// The namespace.
        namespace: String,
        /// The last word.
        name: String,
    },
    /// `namespaces/NS/virtualmachines|virtualmachineinstances/NAME/SUBRESOURCE…`.
    Object {
        /// The namespace.
        namespace: String,
        /// `virtualmachines` or `virtualmachineinstances`.
        resource: &'static str,
        /// The object's name.
        name: String,
        /// The subresource as authorised: `vnc/screenshot` is one, `portforward/22/tcp` is `portforward`.
        subresource: String,
        /// What follows a port forward.
        rest: Vec<String>,
    },
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Version of the group.
    pub version: &'static str,
    /// What it is about.
    pub target: Target,
}

/// Parses `path`; none when it is not one of ours. Only plain words are accepted: no escapes, no dots as directories.
pub fn parse(path: &str) -> Option<Parsed> {
    let mut words = path.strip_prefix("/apis/")?.split('/');
    if words.next()? != GROUP {
        return None;
    }
    let version = words.next()?;
    let version = *VERSIONS.iter().find(|known| **known == version)?;
    let words: Vec<&str> = words.collect();
    if words.iter().any(|word| !plain(word)) {
        return None;
    }
    let target = match words.as_slice() {
        [name] => Target::Cluster { name: (*name).to_owned() },
        ["namespaces", namespace, name] => {
            Target::Namespace { namespace: (*namespace).to_owned(), name: (*name).to_owned() }
        }
        ["namespaces", namespace, resource, name, rest @ ..] if !rest.is_empty() => {
            let resource = match *resource {
                "virtualmachines" => "virtualmachines",
                "virtualmachineinstances" => "virtualmachineinstances",
                _ => return None,
            };
            let (subresource, rest) = match rest {
                ["portforward", rest @ ..] if !rest.is_empty() && rest.len() <= 2 => ("portforward".to_owned(), rest),
                [one] => ((*one).to_owned(), &[][..]),
                [one, two] => (format!("{one}/{two}"), &[][..]),
                _ => return None,
            };
            Target::Object {
                namespace: (*namespace).to_owned(),
                resource,
                name: (*name).to_owned(),
                subresource,
                rest: rest.iter().map(|word| (*word).to_owned()).collect(),
            }
        }
        _ => return None,
    };
    Some(Parsed { version, target })
}

fn plain(word: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    !word.is_empty() && word != "." && word != ".." && word.chars().all(good)
}

impl Parsed {
    /// The question for the authoriser; none for what everybody may see.
    pub fn question(&self, method: &Method) -> Option<Question> {
        let verb = if *method == Method::GET { "get" } else { "update" };
        let question = |namespace: &str, resource: &str, subresource: &str, name: &str| {
            Some(Question {
                group: GROUP,
                version: "v1",
                verb,
                namespace: namespace.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                name: name.to_owned(),
            })
        };
        match &self.target {
            Target::Cluster { name } if name == "healthz" => None,
            Target::Cluster { name } => question("", name, "", ""),
            Target::Namespace { namespace, name } => question(namespace, name, "", ""),
            Target::Object { namespace, resource, name, subresource, .. } => {
                question(namespace, resource, subresource, name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "/apis/subresources.kubevirt.io/v1";

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(rest: &str, verb: Method, expect: Option<[&str; 5]>) {
        let found = parse(&format!("{BASE}{rest}")).and_then(|parsed| parsed.question(&verb));
        let found = found
            .as_ref()
            .map(|q| [q.verb, q.namespace.as_str(), q.resource.as_str(), q.name.as_str(), q.subresource.as_str()]);
        assert_eq!(found, expect, "{rest}");
    }

    #[test]
    fn subresource_paths_are_parsed_exactly() {
        let vmi = "virtualmachineinstances";
        check("/namespaces/a/virtualmachineinstances/x/console", Method::GET, Some(["get", "a", vmi, "x", "console"]));
        check(
            "/namespaces/a/virtualmachineinstances/x/vnc/screenshot",
            Method::GET,
            Some(["get", "a", vmi, "x", "vnc/screenshot"]),
        );
        check(
            "/namespaces/a/virtualmachines/x/portforward/22/tcp",
            Method::GET,
            Some(["get", "a", "virtualmachines", "x", "portforward"]),
        );
        check(
            "/namespaces/a/virtualmachines/x/stop",
            Method::PUT,
            Some(["update", "a", "virtualmachines", "x", "stop"]),
        );
        check("/version", Method::GET, Some(["get", "", "version", "", ""]));
        check("/namespaces/a/expand-vm-spec", Method::PUT, Some(["update", "a", "expand-vm-spec", "", ""]));
    }

    #[test]
    fn tricks_are_not_paths() {
        for rest in [
            "/namespaces/a/virtualmachineinstances/x",
            "/namespaces/a/virtualmachineinstances/../x/console",
            "/namespaces/a/virtualmachineinstances/x%2Fy/console",
            "/namespaces/a/virtualmachineinstances//x/console",
            "/namespaces/a/pods/x/exec",
            "/namespaces/a/virtualmachineinstances/x/portforward/1/tcp/more",
        ] {
            check(rest, Method::GET, None);
        }
        assert_eq!(parse("/apis/subresources.kubevirt.io/v2/version"), None);
        assert_eq!(parse("/apis/other/v1/version"), None);
    }
}
