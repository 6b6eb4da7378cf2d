//! What was asked of the server, by whom: counted for `/metrics` in the Prometheus text format.
//!
//! Upstream's `apiserver_request_total` does not say who asked. Here it does, because "which component writes so much?"
//! is what the counter is looked up for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use http::StatusCode;

use apimachinery::request::{RequestInfo, User};

/// Users and resources are few, but not ours to bound; what comes after so many series is counted for `other`.
const SERIES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    user: String,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

/// Requests answered since the server was opened.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    series: Mutex<BTreeMap<Series, u64>>,
}

impl Requests {
    /// Counts one answer.
    pub(crate) fn count(&self, user: &User, info: &RequestInfo, code: StatusCode) {
        let mut key = Series {
            user: user.name.clone(),
            verb: info.verb.clone(),
            group: info.group.clone(),
            resource: info.resource.clone(),
            // A proxied path is nobody's business here.
            subresource: info.subresource.split('/').next().unwrap_or_default().to_owned(),
            code: code.as_u16(),
        };
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if series.len() >= SERIES && !series.contains_key(&key) {
            let other = "other".to_owned();
            key = Series {
                user: other.clone(),
                resource: other,
                group: String::new(),
                subresource: String::new(),
                ..key
            };
        }
        *series.entry(key).or_default() += 1;
    }

    /// The page.
    pub(crate) fn page(&self) -> String {
        let mut text = "# HELP apiserver_request_total Requests for resources that were answered.\n\
                        # TYPE apiserver_request_total counter\n"
            .to_owned();
        for (series, count) in self.series.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let Series { user, verb, group, resource, subresource, code } = series;
            let labels = [("user", user), ("verb", verb), ("group", group), ("resource", resource)];
            let _ = write!(text, "apiserver_request_total{{");
            for (name, value) in labels.into_iter().chain([("subresource", subresource)]) {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(text, "{name}=\"{value}\",");
            }
            let _ = writeln!(text, "code=\"{code}\"}} {count}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(user: &str, resource: &str) -> (User, RequestInfo) {
        let info = RequestInfo { verb: "create".into(), resource: resource.into(), ..RequestInfo::default() };
        (User { name: user.into(), ..User::default() }, info)
    }

    #[test]
    fn answers_are_counted_by_who_asked() {
        let requests = Requests::default();
        for name in ["ann", "bob \"the\"", "ann"] {
            let (user, info) = ask(name, "pods");
            requests.count(&user, &info, StatusCode::CREATED);
        }
        let page = requests.page();
        let tail = "verb=\"create\",group=\"\",resource=\"pods\",subresource=\"\",code=\"201\"}";
        assert!(page.contains(&format!("apiserver_request_total{{user=\"ann\",{tail} 2\n")), "{page}");
        assert!(page.contains(&format!("apiserver_request_total{{user=\"bob \\\"the\\\"\",{tail} 1\n")), "{page}");
    }

    #[test]
    fn series_are_bounded() {
        let requests = Requests::default();
        for n in 0..SERIES + 10 {
            let (user, info) = ask(&format!("user-{n}"), "pods");
            requests.count(&user, &info, StatusCode::OK);
        }
        let page = requests.page();
        assert_eq!(page.lines().count(), SERIES + 3, "two lines of words and one series for the rest");
        assert!(page.contains("user=\"other\"") && page.ends_with('\n'), "{page}");
    }
}
