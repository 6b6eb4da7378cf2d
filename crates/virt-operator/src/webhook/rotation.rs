//! What the KubeVirt object says about how long certificates are valid, and when they are renewed. Pure.

use std::time::Duration;

use kit::admission::Cause;
use kit::duration::{format, parse};
use serde_json::Value;

const PATH: &str = "spec.certificateRotateStrategy.selfSigned";
/// The older fields.
const OLDER: [&str; 3] = ["caRotateInterval", "caOverlapInterval", "certRotateInterval"];
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn invalid(field: String, message: String) -> Cause {
    Cause { reason: "FieldValueInvalid", field, message }
}

/// What is wrong.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let said = kubevirt.pointer("/spec/certificateRotateStrategy/selfSigned").unwrap_or(&Value::Null);
    let mut causes: Vec<Cause> = ["ca.duration", "ca.renewBefore", "server.duration", "server.renewBefore"]
        .into_iter()
        .chain(OLDER)
        .filter_map(|field| unreadable(said, field))
        .collect();
    let older = OLDER.iter().find(|field| !said[**field].is_null());
    if let Some(field) = older.filter(|_| !said["ca"].is_null() || !said["server"].is_null()) {
        causes.push(invalid(
            format!("{PATH}.{field}"),
            "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and conflict with CertConfig defined \
             rotation parameters"
                .to_owned(),
        ));
    }
    if causes.is_empty() {
        causes.extend(relations(said));
    }
    causes
}

fn at<'a>(said: &'a Value, field: &str) -> &'a Value {
    said.pointer(&format!("/{}", field.replace('.', "/"))).unwrap_or(&Value::Null)
}

fn unreadable(said: &Value, field: &str) -> Option<Cause> {
    let text = at(said, field).as_str()?;
    let why = match parse(text) {
        Some(duration) if !duration.is_zero() => return None,
        Some(_) => "must be longer than that",
        None => "which is not a duration: write it like 24h or 4h48m",
    };
    Some(invalid(format!("{PATH}.{field}"), format!("{PATH}.{field} is {text:?}, {why}")))
}

/// What is wrong between fields that are each right.
fn relations(said: &Value) -> Vec<Cause> {
    // The first that is there says it.
    let of = |fields: [&'static str; 2], default: Duration| {
        let found = fields.into_iter().find_map(|field| Some((field, parse(at(said, field).as_str()?)?)));
        found.unwrap_or((fields[1], default))
    };
    let (ca_field, ca) = of(["caRotateInterval", "ca.duration"], WEEK);
    let (overlap_field, overlap) = of(["caOverlapInterval", "ca.renewBefore"], ca / 5);
    let (leaf_field, leaf) = of(["certRotateInterval", "server.duration"], DAY);
    let (renew_field, renew) = of(["", "server.renewBefore"], leaf / 5);
    let mut causes = Vec::new();
    let mut exceeds = |what: &str, field: &str, value: Duration, other: &str, most: Duration, remedy: &str| {
        let (value, most) = (format(value), format(most));
        let message = format!("{what} ({PATH}.{field} is {value}, {PATH}.{other} is {most}): {remedy}");
        causes.push(invalid(format!("{PATH}.{field}"), message));
    };
    if overlap > ca {
        let remedy = "renew it a shorter time before its end";
        exceeds("CA RenewBefore cannot exceed Duration", overlap_field, overlap, ca_field, ca, remedy);
    }
    if renew > leaf {
        let remedy = "renew it a shorter time before its end";
        exceeds("Cert RenewBefore cannot exceed Duration", renew_field, renew, leaf_field, leaf, remedy);
    }
    if leaf > ca {
        let remedy = "a certificate cannot outlive its authority: make it shorter, or the authority longer";
        exceeds("Certificate duration cannot exceed CA", leaf_field, leaf, ca_field, ca, remedy);
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(said: Value, expect: &[(&str, &str)]) {
        let kubevirt = json!({ "spec": { "certificateRotateStrategy": { "selfSigned": said } } });
        let found = causes(&kubevirt);
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (cause, (field, part)) in found.iter().zip(expect) {
            assert_eq!(cause.field, format!("{PATH}.{field}"));
            assert!(cause.message.contains(part), "{}", cause.message);
        }
    }

    #[test]
    fn valid_rotation_is_accepted() {
        check(Value::Null, &[]);
        check(json!({ "ca": { "duration": "48h", "renewBefore": "16h" }, "server": { "duration": "24h" } }), &[]);
        check(json!({ "caRotateInterval": "48h", "caOverlapInterval": "8h", "certRotateInterval": "12h" }), &[]);
    }

    #[test]
    fn invalid_rotation_is_refused_by_field_and_value() {
        check(json!({ "ca": { "duration": "5d" } }), &[("ca.duration", "is \"5d\", which is not a duration")]);
        check(json!({ "server": { "duration": "0s" } }), &[("server.duration", "must be longer")]);
        let both = "are deprecated and conflict with CertConfig defined rotation parameters";
        check(json!({ "caRotateInterval": "48h", "server": {} }), &[("caRotateInterval", both)]);
        let ca = "CA RenewBefore cannot exceed Duration (spec.certificateRotateStrategy.selfSigned.ca.renewBefore is 200h0m0s";
        check(json!({ "ca": { "renewBefore": "200h" } }), &[("ca.renewBefore", ca)]);
        let leaf = json!({ "server": { "duration": "2h", "renewBefore": "3h" } });
        check(leaf, &[("server.renewBefore", "Cert RenewBefore cannot exceed Duration")]);
        let longer = json!({ "ca": { "duration": "12h" } });
        check(longer, &[("server.duration", "Certificate duration cannot exceed CA")]);
    }
}
