//! What the usual validators of bundles and catalogs refuse or warn of. Pure: a sentence for each finding.

mod catalog;
mod csv;
mod objects;

pub(super) use catalog::check as catalog;
use serde_json::Value;

/// Findings about a bundle: its manifests, the ClusterServiceVersion first, and its metadata.
pub(super) fn bundle(manifests: &[Value], metadata: &Value) -> Vec<String> {
    let mut found = marks(metadata);
    let mut versions = manifests.iter().filter(|one| one["kind"] == "ClusterServiceVersion");
    match (versions.next(), versions.next()) {
        (Some(version), None) => {
            found.extend(csv::check(version));
            found.extend(objects::check(version, manifests));
        }
        (None, _) => found.push("there is no ClusterServiceVersion".to_owned()),
        _ => found.push("there is more than one ClusterServiceVersion".to_owned()),
    }
    found
}

/// Marks that every bundle carries, and what they are; an empty value stands for any.
const MARKS: [(&str, &str); 6] = [
    ("mediatype.v1", "registry+v1"),
    ("manifests.v1", "manifests/"),
    ("metadata.v1", "metadata/"),
    ("package.v1", ""),
    ("channels.v1", ""),
    ("channel.default.v1", ""),
];

fn marks(metadata: &Value) -> Vec<String> {
    let value = |name: &str| {
        metadata["annotations"][format!("operators.operatorframework.io.bundle.{name}")].as_str().unwrap_or_default()
    };
    let mut found = Vec::new();
    for (name, expect) in MARKS {
        if value(name).is_empty() {
            found.push(format!("metadata: annotation {name} is missing"));
        } else if !expect.is_empty() && value(name) != expect {
            found.push(format!("metadata: annotation {name} is {}, not {expect}", value(name)));
        }
    }
    let default = value("channel.default.v1");
    if !default.is_empty() && !value("channels.v1").split(',').any(|channel| channel == default) {
        found.push(format!("metadata: the default channel {default} is none of its channels"));
    }
    found
}

/// Whether it names an object, or a version of one, as RFC 1123 has it, in at most 63 characters.
fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last())
}

/// Whether it is `MAJOR.MINOR.PATCH`, with whatever may follow that.
fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u64>().is_ok())
}

/// Whether it names an image: a registry, a path, and a tag or a digest.
fn is_image(text: &str) -> bool {
    let (path, version) = match text.split_once('@') {
        Some((path, digest)) => (path, digest.strip_prefix("sha256:").filter(|digits| digits.len() == 64)),
        None => match text.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (text, None),
        },
    };
    path.contains('/')
        && !path.starts_with('/')
        && !path.ends_with('/')
        && version.is_some_and(|version| !version.is_empty())
}

#[cfg(test)]
mod tests;
