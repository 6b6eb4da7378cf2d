//! Admission of signing requests: the server notes who asks, and each signer is approved and signed for by those who may.

use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{strings, text};
use apimachinery::request::RequestInfo;

use super::{Attributes, Operation};
use crate::authz::Authorizer;
use crate::csr::Request;

const GROUP: &str = "certificates.k8s.io";

/// The purposes that have a name.
pub(crate) const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn concerned(attributes: &Attributes) -> bool {
    attributes.resource.group == GROUP && attributes.resource.plural == "certificatesigningrequests"
}

/// Notes who asks, whatever the request claims.
pub(crate) fn note_requestor(attributes: &mut Attributes) {
    let new = attributes.operation == Operation::Create && attributes.info.subresource.is_empty();
    if !concerned(attributes) || !new {
        return;
    }
    let user = attributes.user.clone();
    let Some(spec) = attributes.object.as_mut().and_then(|o| o.get_mut("spec")).and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["uid", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".into(), user.name.into());
    spec.insert("groups".into(), json!(user.groups));
    if !user.uid.is_empty() {
        spec.insert("uid".into(), user.uid.into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), json!(user.extra));
    }
}

/// What is wrong with the specification of a new request.
pub(crate) fn validate(object: &Value, causes: &mut Vec<Cause>) {
    let cause =
        |reason: &str, field: &str, message: String| apimachinery::schema::validate::cause(reason, field, message);
    if parsed(object).is_none() {
        let why =
            "Invalid value: []byte: PEM block type must be CERTIFICATE REQUEST, signed by the key it is for".to_owned();
        causes.push(cause("FieldValueInvalid", "spec.request", why));
    }
    let name = text(object, "/spec/signerName");
    let label = |part: &str| apimachinery::names::label_problem(&part.to_lowercase().replace('_', "-")).is_none();
    let qualified = name != "kubernetes.io/legacy-unknown"
        && name.len() <= 571
        && name.split_once('/').is_some_and(|(domain, path)| {
            domain.contains('.')
                && apimachinery::names::subdomain_problem(domain).is_none()
                && path.split('.').all(label)
        });
    if name.is_empty() {
        causes.push(cause("FieldValueRequired", "spec.signerName", "Required value".into()));
    } else if !qualified {
        let why = format!(
            "Invalid value: {name:?}: must be a fully qualified domain and path of the form 'example.com/signer-name'"
        );
        causes.push(cause("FieldValueInvalid", "spec.signerName", why));
    }
    let usages = strings(object, "/spec/usages");
    if usages.is_empty() {
        causes.push(cause("FieldValueRequired", "spec.usages", "Required value: usages must be specified".into()));
    }
    for (number, usage) in usages.iter().enumerate() {
        if !USAGES.contains(&usage.as_str()) {
            let listed: Vec<String> = USAGES.iter().map(|word| format!("{word:?}")).collect();
            let why = format!("Unsupported value: {usage:?}: supported values: {}", listed.join(", "));
            causes.push(cause("FieldValueNotSupported", &format!("spec.usages[{number}]"), why));
        }
        if usages[..number].contains(usage) {
            causes.push(cause(
                "FieldValueDuplicate",
                &format!("spec.usages[{number}]"),
                format!("Duplicate value: {usage:?}"),
            ));
        }
    }
    if let Some(seconds) = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64).filter(|s| *s < 600) {
        let why = format!("Invalid value: {seconds}: may not specify a duration less than 600 seconds (10 minutes)");
        causes.push(cause("FieldValueInvalid", "spec.expirationSeconds", why));
    }
}

/// What is wrong with what was decided about a request, and with the certificate.
pub(crate) fn validate_status(object: &Value, causes: &mut Vec<Cause>) {
    let mut cause = |reason: &str, field: &str, message: String| {
        causes.push(apimachinery::schema::validate::cause(reason, field, message));
    };
    let conditions = apimachinery::pointer::items(object, "/status/conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let (kind, status) = (text(condition, "/type"), text(condition, "/status"));
        if kind.is_empty() {
            cause("FieldValueRequired", &format!("status.conditions[{index}].type"), "Required value".into());
        }
        if matches!(kind, "Approved" | "Denied" | "Failed") && status != "True" {
            let why = format!("Unsupported value: {status:?}: supported values: \"True\"");
            cause("FieldValueNotSupported", &format!("status.conditions[{index}].status"), why);
        }
    }
    if ["Approved", "Denied"].iter().all(|kind| conditions.iter().any(|condition| text(condition, "/type") == *kind)) {
        let why = "Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive".to_owned();
        cause("FieldValueInvalid", "status.conditions", why);
    }
    let certificate = text(object, "/status/certificate");
    if !certificate.is_empty() {
        use base64::Engine as _;
        let pem = base64::engine::general_purpose::STANDARD.decode(certificate).unwrap_or_default();
        if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
            let why =
                "Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block".to_owned();
            cause("FieldValueInvalid", "status.certificate", why);
        }
    }
}

/// The subject's common name of a request; None when it cannot be read.
pub(crate) fn common_name(csr: &Value) -> Option<String> {
    parsed(csr).map(|request| request.common_name())
}

fn parsed(csr: &Value) -> Option<Request> {
    use base64::Engine as _;
    let pem = base64::engine::general_purpose::STANDARD.decode(text(csr, "/spec/request")).ok()?;
    Request::parse(std::str::from_utf8(&pem).ok()?)
}

/// Who may ask a signer for what, approve for it, and sign in its name.
///
/// # Errors
/// 403 naming the signer.
pub(crate) fn check(authorizer: &Authorizer, attributes: &Attributes) -> Result<(), ApiError> {
    let Some(object) = attributes.object.as_ref().filter(|_| concerned(attributes)) else { return Ok(()) };
    let csr = attributes.old.as_deref().unwrap_or(object);
    let signer = text(csr, "/spec/signerName");
    let refuse = |why: &str| Err(ApiError::forbidden(GROUP, &attributes.resource.plural, &attributes.name, why));
    let changed =
        |pointer: &str| attributes.old.as_ref().and_then(|old| old.pointer(pointer)) != object.pointer(pointer);
    match (attributes.operation, attributes.info.subresource.as_str()) {
        (Operation::Create, "") => {
            let masters = || parsed(object).is_some_and(|r| r.organizations().iter().any(|o| o == "system:masters"));
            if signer == "kubernetes.io/kube-apiserver-client" && masters() {
                let why = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
                return refuse(why);
            }
            Ok(())
        }
        (Operation::Update, "approval") if !may(authorizer, attributes, "approve", signer) => {
            refuse(&format!("user not permitted to approve requests with signerName {signer:?}"))
        }
        (Operation::Update, "status")
            if changed("/status/certificate") && !may(authorizer, attributes, "sign", signer) =>
        {
            refuse(&format!("user not permitted to sign requests with signerName {signer:?}"))
        }
        _ => Ok(()),
    }
}

/// A right on one signer, or on all of its domain.
fn may(authorizer: &Authorizer, attributes: &Attributes, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    [signer.to_owned(), format!("{domain}/*")].into_iter().any(|name| {
        let wanted = RequestInfo {
            verb: verb.into(),
            group: GROUP.into(),
            version: "*".into(),
            resource: "signers".into(),
            name,
            ..RequestInfo::default()
        };
        authorizer.allows(&attributes.user, &wanted)
    })
}
