//! Request bodies in Kubernetes' protobuf, which kubectl and client-go send for the kinds they know.
//!
//! Field numbers, JSON names and types are data (`data/protobuf.json`); decoding is one generic walk. Go's encoder writes
//! zero values of fields that are no pointers, which in JSON would be absent: they are left out here, except in fields where
//! zero says something. Guarantee: arbitrary bytes end in an error, never in a panic, and nest at most 64 levels.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use serde_json::{Map, Value, json};

use apimachinery::error::ApiError;
use apimachinery::schema::builtin;

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";
const DEPTH: usize = 64;

/// JSON name, code of the type, message.
type Field = Vec<String>;

static MESSAGES: LazyLock<HashMap<String, HashMap<String, Field>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../data/protobuf.json")).unwrap_or_default());

/// Fields whose zero or false differs from their absence (pointers in Go).
const POINTERS: [&str; 49] = [
    "replicas",
    "runAsUser",
    "runAsGroup",
    "fsGroup",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "parallelism",
    "completions",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "expirationSeconds",
    "defaultMode",
    "mode",
    "priority",
    "tolerationSeconds",
    "gracePeriodSeconds",
    "startingDeadlineSeconds",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
    "minAvailable",
    "maxUnavailable",
    "maxSurge",
    "partition",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "automountServiceAccountToken",
    "allowPrivilegeEscalation",
    "runAsNonRoot",
    "readOnlyRootFilesystem",
    "privileged",
    "shareProcessNamespace",
    "enableServiceLinks",
    "immutable",
    "blockOwnerDeletion",
    "controller",
    "optional",
    "suspend",
    "hostUsers",
    "allocateLoadBalancerNodePorts",
    "setHostnameAsFQDN",
    "orphanDependents",
    "minReplicas",
    "manualSelector",
    "ready",
    "serving",
    "terminating",
    "started",
];
/// Fields that are written in JSON even when they are zero.
const WRITTEN: [&str; 4] = ["value", "allowed", "verbs", "lastTransitionTime"];

fn malformed() -> ApiError {
    ApiError::bad_request("the body is not a valid protobuf object")
}

/// A body as a tree: an object in its envelope.
pub fn document(bytes: &[u8]) -> Result<Value, ApiError> {
    let unknown = bytes.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in Wire(unknown) {
        match part? {
            (1, Item::Bytes(meta)) => {
                for part in Wire(meta) {
                    match part? {
                        (1, Item::Bytes(text)) => api_version = utf8(text)?,
                        (2, Item::Bytes(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Item::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let name = builtin::schema(group, version, &kind)
        .map(|schema| schema.type_name.clone())
        .or_else(|| builtin::schema("meta.k8s.io", "v1", &kind).map(|schema| schema.type_name.clone()))
        .filter(|name| MESSAGES.contains_key(name))
        .ok_or_else(|| {
            ApiError::new(
                415,
                "UnsupportedMediaType",
                format!("{kind} of {api_version} is accepted as application/json or application/yaml only"),
            )
        })?;
    let mut object = message(raw, &name, DEPTH)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

fn utf8(bytes: &[u8]) -> Result<String, ApiError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| malformed())
}

enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed(u64),
}

/// The fields of a message in order.
struct Wire<'a>(&'a [u8]);

impl<'a> Wire<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
    fn field(&mut self) -> Option<(u64, Item<'a>)> {
        let key = self.varint()?;
        let item = match key & 7 {
            0 => Item::Number(self.varint()?),
            1 => Item::Fixed(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Item::Bytes(self.take(length)?)
            }
            5 => Item::Fixed(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((key >> 3, item))
    }
}

impl<'a> Iterator for Wire<'a> {
    type Item = Result<(u64, Item<'a>), ApiError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(malformed))
    }
}

fn message(bytes: &[u8], name: &str, depth: usize) -> Result<Map<String, Value>, ApiError> {
    let fields = MESSAGES.get(name).filter(|_| depth > 0).ok_or_else(malformed)?;
    let mut object = Map::new();
    for part in Wire(bytes) {
        let (number, item) = part?;
        let Some(field) = fields.get(&number.to_string()) else { continue };
        let [json_name, code, rest @ ..] = field.as_slice() else { continue };
        let nested = rest.first().map_or("", String::as_str);
        if json_name.is_empty() {
            if let Item::Bytes(bytes) = item {
                object.extend(message(bytes, nested, depth - 1)?);
            }
        } else if let Some(code) = code.strip_prefix('*') {
            let Some(value) = value(&item, code, nested, depth)? else { continue };
            match object.entry(json_name).or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(value),
                _ => return Err(malformed()),
            }
        } else if let Some(code) = code.strip_prefix('{') {
            let Item::Bytes(bytes) = item else { return Err(malformed()) };
            let (mut key, mut entry) = (String::new(), empty(code));
            for part in Wire(bytes) {
                match part? {
                    (1, Item::Bytes(text)) => key = utf8(text)?,
                    (2, item) => entry = value(&item, code, nested, depth)?.unwrap_or_else(|| empty(code)),
                    _ => {}
                }
            }
            object.entry(json_name).or_insert_with(|| json!({}))[&key] = entry;
        } else if let Some(value) = value(&item, code, nested, depth)?
            && !absent(json_name, &value)
        {
            object.insert(json_name.clone(), value);
        }
    }
    Ok(object)
}

/// Whether JSON would leave the value out.
fn absent(name: &str, value: &Value) -> bool {
    let zero = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(on) => !on,
        Value::Object(map) => {
            map.is_empty() && matches!(name, "status" | "strategy" | "resources" | "updateStrategy" | "loadBalancer")
        }
        Value::Array(_) => false,
    };
    let scalar = !matches!(value, Value::Null | Value::String(_));
    zero && !(scalar && (POINTERS.contains(&name) || WRITTEN.contains(&name)))
}

fn empty(code: &str) -> Value {
    match code {
        "s" | "y" | "Q" => "".into(),
        "i" => 0.into(),
        "b" => false.into(),
        "w" => json!([]),
        _ => json!({}),
    }
}

/// One value; None when it is JSON's null.
fn value(item: &Item<'_>, code: &str, nested: &str, depth: usize) -> Result<Option<Value>, ApiError> {
    let signed = |number: u64| number.cast_signed();
    Ok(match (code, item) {
        ("s", Item::Bytes(text)) => Some(utf8(text)?.into()),
        ("y", Item::Bytes(bytes)) => Some(base64::engine::general_purpose::STANDARD.encode(bytes).into()),
        ("i", Item::Number(number)) => Some(signed(*number).into()),
        ("b", Item::Number(number)) => Some((*number != 0).into()),
        ("d", Item::Fixed(bits)) => Some(f64::from_bits(*bits).into()),
        ("m", Item::Bytes(bytes)) => Some(Value::Object(message(bytes, nested, depth - 1)?)),
        ("w", Item::Bytes(bytes)) => {
            let texts = Wire(bytes).map(|part| match part? {
                (1, Item::Bytes(text)) => utf8(text).map(Value::from),
                _ => Err(malformed()),
            });
            Some(Value::Array(texts.collect::<Result<_, _>>()?))
        }
        ("T" | "U", Item::Bytes(bytes)) => time(bytes, code == "U")?,
        ("Q", Item::Bytes(bytes)) => Some(first_text(bytes)?.into()),
        ("I", Item::Bytes(bytes)) => Some(int_or_string(bytes)?),
        ("D", Item::Bytes(bytes)) => Some(format!("{}ns", numbers(bytes)?.first().copied().unwrap_or(0)).into()),
        ("R" | "J", Item::Bytes(bytes)) => {
            let raw = first_bytes(bytes)?;
            if raw.is_empty() { None } else { Some(serde_json::from_slice(raw).map_err(|_| malformed())?) }
        }
        _ => return Err(malformed()),
    })
}

fn numbers(bytes: &[u8]) -> Result<[i64; 4], ApiError> {
    let mut found = [0; 4];
    for part in Wire(bytes) {
        if let (field @ 1..=4, Item::Number(number)) = part?
            && let Some(slot) = usize::try_from(field - 1).ok().and_then(|i| found.get_mut(i))
        {
            *slot = number.cast_signed();
        }
    }
    Ok(found)
}

fn first_bytes(bytes: &[u8]) -> Result<&[u8], ApiError> {
    for part in Wire(bytes) {
        if let (1, Item::Bytes(inner)) = part? {
            return Ok(inner);
        }
    }
    Ok(&[])
}

fn first_text(bytes: &[u8]) -> Result<String, ApiError> {
    utf8(first_bytes(bytes)?)
}

fn time(bytes: &[u8], micro: bool) -> Result<Option<Value>, ApiError> {
    let [seconds, nanos, ..] = numbers(bytes)?;
    // Go's zero time stands for none.
    if bytes.is_empty() || seconds <= -62_135_596_800 {
        return Ok(None);
    }
    let nanos = i32::try_from(nanos).map_err(|_| malformed())?;
    let stamp = jiff::Timestamp::new(seconds, nanos).map_err(|_| malformed())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Some(stamp.strftime(format).to_string().into()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ApiError> {
    let [kind, number, ..] = numbers(bytes)?;
    if kind == 0 {
        return Ok(number.into());
    }
    for part in Wire(bytes) {
        if let (3, Item::Bytes(text)) = part? {
            return Ok(utf8(text)?.into());
        }
    }
    Ok("".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    fn check(bytes: &[u8], expect: &Value) {
        assert_eq!(document(bytes).unwrap(), *expect);
    }

    #[test]
    fn objects_of_kubectl() {
        let meta = [field(1, b"foo"), field(2, b""), field(8, b"")].concat();
        check(
            &body("v1", "ServiceAccount", &field(1, &meta)),
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "foo"}}),
        );
        let attributes = [field(1, b"default"), field(2, b"list"), field(3, b""), field(5, b"pods")].concat();
        check(
            &body("authorization.k8s.io/v1", "SelfSubjectAccessReview", &field(2, &field(1, &attributes))),
            &json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"namespace": "default", "verb": "list", "resource": "pods"}}}),
        );
        let data = field(2, &[field(1, b"k"), field(2, b"v")].concat());
        check(&body("v1", "ConfigMap", &data), &json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}}));
        check(
            &body("apps/v1", "Deployment", &field(2, &[0x08, 0x00])),
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0}}),
        );
    }

    /// The names a message can yield, those of messages it embeds included.
    fn names(message: &str) -> Vec<&str> {
        let fields = MESSAGES[message].values();
        let of = |field: &'static Field| match field[0].as_str() {
            "" => names(&field[2]),
            name => vec![name],
        };
        fields.flat_map(of).collect()
    }

    #[test]
    fn every_field_of_every_type_is_known() {
        for (message, _) in MESSAGES.iter() {
            let Some(schema) = builtin::definition(message) else { continue };
            let known = names(message);
            let missing: Vec<_> = schema
                .properties
                .keys()
                .filter(|name| !matches!(name.as_str(), "apiVersion" | "kind") && !known.contains(&name.as_str()))
                .collect();
            assert!(missing.is_empty(), "{message} lacks {missing:?}");
        }
    }

    #[test]
    fn embedded_messages_are_fields_of_their_holder() {
        let rule = [field(1, b"apps"), field(2, b"v1"), field(3, b"deployments")].concat();
        let hook = [field(1, b"h"), field(3, &[field(1, b"CREATE"), field(2, &rule)].concat())].concat();
        let document =
            document(&body("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", &field(2, &hook)))
                .unwrap();
        assert_eq!(
            document["webhooks"][0]["rules"],
            json!([{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}])
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = document(&bytes);
            let _ = message(&bytes, "io.k8s.api.core.v1.Pod", DEPTH);
        }
    }
}
