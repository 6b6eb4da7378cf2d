//! The rules of names, labels and parts of paths; the sentences are those of Kubernetes.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// What is wrong with the name of a domain; None when nothing is.
pub fn subdomain_problem(name: &str) -> Option<&'static str> {
    match name {
        _ if name.len() > 253 => Some("must be no more than 253 bytes"),
        _ => (!name.split('.').all(is_label)).then_some(SUBDOMAIN),
    }
}

/// What is wrong with a label of a domain; None when nothing is.
pub fn label_problem(name: &str) -> Option<&'static str> {
    match name {
        _ if name.len() > 63 => Some("must be no more than 63 bytes"),
        _ => (!is_label(name)).then_some(LABEL),
    }
}

/// What is wrong with a name that is a label, a part of other names; None when nothing is.
pub fn label_name_problem(name: &str) -> Option<&'static str> {
    let dotted = name.contains('.') && name.split('.').all(is_label);
    label_problem(name).map(|why| if dotted { "must not contain dots" } else { why })
}

/// What is wrong with a part of a path; None when nothing is.
pub fn path_segment_problem(name: &str) -> Option<&'static str> {
    match name {
        "." => Some("may not be '.'"),
        ".." => Some("may not be '..'"),
        _ if name.contains('/') => Some("may not contain '/'"),
        _ => name.contains('%').then_some("may not contain '%'"),
    }
}

/// What is wrong with a label key, annotation key or finalizer.
pub fn qualified_name_problem(key: &str) -> Option<String> {
    const RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if name.contains('/') {
        return Some("a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')".into());
    }
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".into());
        }
        if prefix.len() > 253 || !prefix.split('.').all(is_label) {
            return Some(format!("prefix part {SUBDOMAIN}"));
        }
    }
    if name.is_empty() {
        return Some("name part must be non-empty".into());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".into());
    }
    (!label_text(name)).then(|| RULE.to_owned())
}

/// What is wrong with a label's value.
pub fn label_value_problem(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".into());
    }
    (!value.is_empty() && !label_text(value)).then(|| "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_owned())
}

fn label_text(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_rules() {
        for (key, ok) in [("a", true), ("k8s.io/a_b", true), ("/a", false), ("a/b/c", false), ("-", false), ("", false)]
        {
            assert_eq!(qualified_name_problem(key).is_none(), ok, "{key}");
        }
        assert!(label_value_problem("").is_none());
        assert!(label_value_problem("a b").is_some());
    }
}
