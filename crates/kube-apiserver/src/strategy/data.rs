//! ConfigMaps and Secrets: keys that can be file names, what each type of Secret must hold, how much fits.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::invalid;

/// Bytes of all values together at most.
const MOST: usize = 1024 * 1024;
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Checks the keys and values of a ConfigMap.
pub(super) fn config_map(object: &Value, causes: &mut Vec<Cause>) {
    let mut total = 0;
    for field in ["data", "binaryData"] {
        for (name, value) in object[field].as_object().into_iter().flatten() {
            key(field, name, causes);
            if field == "data" && object["binaryData"].get(name).is_some() {
                let message = format!("Invalid value: {name:?}: duplicate of key present in binaryData");
                causes.push(cause("FieldValueInvalid", &format!("data[{name}]"), message));
            }
            let length = value.as_str().map_or(0, str::len);
            total += if field == "data" { length } else { length / 4 * 3 };
        }
    }
    size("[]", total, causes);
}

/// Checks the keys and values of a Secret, and what its type needs.
pub(super) fn secret(object: &Value, causes: &mut Vec<Cause>) {
    let mut total = 0;
    for (name, value) in object["data"].as_object().into_iter().flatten() {
        key("data", name, causes);
        total += value.as_str().map_or(0, str::len) / 4 * 3;
    }
    size("data", total, causes);
    let needed: &[&str] = match object["type"].as_str().unwrap_or_default() {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/basic-auth" if object["data"]["username"].is_null() && object["data"]["password"].is_null() => {
            &["username", "password"]
        }
        "kubernetes.io/service-account-token" => {
            if object["metadata"]["annotations"]["kubernetes.io/service-account.name"]
                .as_str()
                .is_none_or(str::is_empty)
            {
                super::required("metadata.annotations[kubernetes.io/service-account.name]", causes);
            }
            &[]
        }
        _ => &[],
    };
    for name in needed {
        let at = format!("data[{name}]");
        let Some(value) = object["data"][*name].as_str() else {
            super::required(&at, causes);
            continue;
        };
        if value.is_empty() && *name == "ssh-privatekey" {
            super::required(&at, causes);
        }
        let document = name.starts_with(".docker");
        if document && !STANDARD.decode(value).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok()) {
            invalid(&at, &"<secret contents redacted>".into(), "the value is not valid JSON", causes);
        }
    }
}

fn key(field: &str, name: &str, causes: &mut Vec<Cause>) {
    if let Some(why) = key_problem(name) {
        invalid(&format!("{field}[{name}]"), &name.into(), &why, causes);
    }
}

/// What is wrong with a key, which must be able to be the name of a file; None when nothing is.
pub(super) fn key_problem(name: &str) -> Option<String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name {
        _ if name.len() > 253 => Some("must be no more than 253 characters".into()),
        _ if name.is_empty() || !name.chars().all(letters) => Some(KEY.into()),
        "." | ".." => Some(format!("must not be '{name}'")),
        _ => name.starts_with("..").then(|| "must not start with '..'".into()),
    }
}

fn size(field: &str, total: usize, causes: &mut Vec<Cause>) {
    if total > MOST {
        let message = format!("Too long: may not be more than {MOST} bytes");
        causes.push(cause("FieldValueTooLong", field, message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(kind: fn(&Value, &mut Vec<Cause>), object: &Value, expect: &[&str]) {
        let mut causes = Vec::new();
        kind(object, &mut causes);
        let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let matches = got.len() == expect.len() && got.iter().zip(expect).all(|(got, expect)| got.starts_with(expect));
        assert!(matches, "{got:?} instead of {expect:?}");
    }

    #[test]
    fn keys_can_be_file_names() {
        check(config_map, &json!({"data": {"a.b_c-D": "1", ".hidden": "2"}}), &[]);
        check(
            config_map,
            &json!({"data": {"a/b": "1"}}),
            &["data[a/b]: Invalid value: \"a/b\": a valid config key must"],
        );
        check(config_map, &json!({"data": {"..": "1"}}), &["data[..]: Invalid value: \"..\": must not be '..'"]);
        check(secret, &json!({"data": {"..a": ""}}), &["data[..a]: Invalid value: \"..a\": must not start with '..'"]);
        let twice = json!({"data": {"k": "1"}, "binaryData": {"k": "MQ=="}});
        check(config_map, &twice, &["data[k]: Invalid value: \"k\": duplicate of key present in binaryData"]);
        let large = json!({"data": {"k": "x".repeat(MOST + 1)}});
        check(config_map, &large, &["[]: Too long: may not be more than 1048576 bytes"]);
    }

    #[test]
    fn types_of_secrets_need_their_keys() {
        let of = |type_: &str, data: Value| json!({"type": type_, "data": data});
        check(secret, &of("Opaque", json!({})), &[]);
        check(secret, &of("kubernetes.io/tls", json!({"tls.crt": ""})), &["data[tls.key]: Required value"]);
        check(secret, &of("kubernetes.io/basic-auth", json!({"username": "YQ=="})), &[]);
        check(secret, &of("kubernetes.io/basic-auth", json!({"password": "YQ=="})), &[]);
        check(
            secret,
            &of("kubernetes.io/basic-auth", json!({})),
            &["data[username]: Required value", "data[password]: Required value"],
        );
        check(secret, &of("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "e30="})), &[]);
        check(
            secret,
            &of("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "e30"})),
            &["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": the value is not valid JSON"],
        );
        check(
            secret,
            &of("kubernetes.io/service-account-token", json!({})),
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        );
    }
}
