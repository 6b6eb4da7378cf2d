//! A FlowSchema, compiled: whose requests of which kind it is about, and what tells them apart.

use http::HeaderValue;
use serde_json::Value;

use apimachinery::pointer::{items, strings, text};
use apimachinery::request::{RequestInfo, User};

use super::CATCH_ALL;

/// See the module.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(super) name: String,
    pub(super) uid: HeaderValue,
    /// The level its requests are served at.
    pub(super) level: String,
    precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distinguisher {
    None,
    User,
    Namespace,
}

#[derive(Debug)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug)]
enum Subject {
    Anybody,
    User(String),
    Group(String),
    /// Each account of a namespace, by what their names begin with.
    Accounts(String),
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Words,
    groups: Words,
    resources: Words,
    namespaces: Words,
    cluster: bool,
}

#[derive(Debug)]
struct PathRule {
    verbs: Words,
    paths: Vec<String>,
}

/// A list of words, or all of them.
#[derive(Debug)]
enum Words {
    All,
    These(Vec<String>),
}

impl Words {
    fn read(object: &Value, list: &str) -> Self {
        let words = strings(object, list);
        if words.iter().any(|word| word == "*") { Self::All } else { Self::These(words) }
    }

    fn has(&self, is: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::These(words) => words.iter().any(|word| is(word)),
        }
    }
}

impl Schema {
    /// Reads a stored object.
    pub(super) fn read(object: &Value, uid: HeaderValue) -> Self {
        Self {
            name: text(object, "/metadata/name").to_owned(),
            uid,
            level: text(object, "/spec/priorityLevelConfiguration/name").to_owned(),
            precedence: object["spec"]["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguisher: match text(object, "/spec/distinguisherMethod/type") {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            rules: items(object, "/spec/rules").iter().map(Rule::read).collect(),
        }
    }

    /// Where it stands among others.
    pub(super) fn order(&self) -> (bool, i64, &str) {
        (self.name == CATCH_ALL, self.precedence, &self.name)
    }

    pub(super) fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.matches(user, info))
    }

    pub(super) fn distinguish<'a>(&self, user: &'a User, info: &'a RequestInfo) -> &'a str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        }
    }
}

impl Rule {
    fn read(rule: &Value) -> Self {
        let resources = items(rule, "/resourceRules").iter().map(|rule| ResourceRule {
            verbs: Words::read(rule, "/verbs"),
            groups: Words::read(rule, "/apiGroups"),
            resources: Words::read(rule, "/resources"),
            namespaces: Words::read(rule, "/namespaces"),
            cluster: rule["clusterScope"] == true,
        });
        let paths = items(rule, "/nonResourceRules")
            .iter()
            .map(|rule| PathRule { verbs: Words::read(rule, "/verbs"), paths: strings(rule, "/nonResourceURLs") });
        Self {
            subjects: items(rule, "/subjects").iter().filter_map(Subject::read).collect(),
            resources: resources.collect(),
            paths: paths.collect(),
        }
    }

    fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        let asks = if info.is_resource() {
            self.resources.iter().any(|rule| rule.matches(info))
        } else {
            self.paths.iter().any(|rule| rule.matches(info))
        };
        asks && self.subjects.iter().any(|subject| subject.is(user))
    }
}

impl Subject {
    fn read(subject: &Value) -> Option<Self> {
        let name = |pointer: &str| text(subject, pointer).to_owned();
        Some(match text(subject, "/kind") {
            "User" if name("/user/name") == "*" => Self::Anybody,
            "User" => Self::User(name("/user/name")),
            "Group" if name("/group/name") == "*" => Self::Anybody,
            "Group" => Self::Group(name("/group/name")),
            "ServiceAccount" => {
                let space = format!("system:serviceaccount:{}:", name("/serviceAccount/namespace"));
                match name("/serviceAccount/name").as_str() {
                    "*" => Self::Accounts(space),
                    name => Self::User(space + name),
                }
            }
            _ => return None,
        })
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Self::Anybody => true,
            Self::User(name) => user.name == *name,
            Self::Group(name) => user.groups.contains(name),
            Self::Accounts(space) => user.name.starts_with(space.as_str()),
        }
    }
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        // `nodes/status` is not among `nodes`.
        let is_resource = |word: &str| match word.split_once('/') {
            Some((resource, subresource)) => resource == info.resource && subresource == info.subresource,
            None => word == info.resource && info.subresource.is_empty(),
        };
        let place = || {
            if info.namespace.is_empty() { self.cluster } else { self.namespaces.has(|word| word == info.namespace) }
        };
        self.verbs.has(|word| word == info.verb)
            && self.groups.has(|word| word == info.group)
            && self.resources.has(is_resource)
            && place()
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let is_path = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => info.path.starts_with(start),
            None => *pattern == info.path,
        };
        self.verbs.has(|word| word == info.verb) && self.paths.iter().any(is_path)
    }
}
