//! Both ways of protobuf, by data.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use apimachinery::schema::{Schema, Type, builtin};

use super::encode::frame;
use super::table::{Field, MESSAGES};
use super::*;
use crate::rest::bounds::VALUES;

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
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
fn values_are_counted() {
    let pod = |containers: usize| body("v1", "Pod", &field(2, &field(2, b"").repeat(containers)));
    // The pod's specification is one.
    assert!(document(&pod(VALUES - 1)).is_ok());
    let raw = format!("[{}1]", "1,".repeat(VALUES));
    let revision = body("apps/v1", "ControllerRevision", &field(2, &field(1, raw.as_bytes())));
    for bytes in [pod(VALUES), revision] {
        let error = document(&bytes).unwrap_err();
        assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"));
    }
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

#[test]
fn a_refusal_of_a_real_server_is_read_as_ours_is_written() {
    let recorded = b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12U\n\x06\n\0\x12\0\x1a\0\x12\x07Failure\
        \x1a\x1bconfigmaps \"nope\" not found\"\x08NotFound*\x18\n\x04nope\x12\0\x1a\nconfigmaps(\x002\x000\x94\x03\x1a\0\"\0";
    let ours = ApiError::not_found("", "configmaps", "nope").to_status();
    check(recorded, &ours);
    check(&encode(&ours).unwrap(), &ours);
}

#[test]
fn lists_are_written_with_their_items_and_events_in_frames() {
    let item = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    let list =
        json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [item]});
    let map = field(1, &[field(1, b"a")].concat());
    let data = field(2, &[field(1, b"k"), field(2, b"v")].concat());
    let raw = [field(1, &field(2, b"7")), field(2, &[map, data].concat())].concat();
    assert_eq!(encode(&list).unwrap(), body("v1", "ConfigMapList", &raw));

    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let told = frame("ADDED", &object).unwrap();
    let (length, event) = told.split_first_chunk().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, event.len());
    assert_eq!(event, [field(1, b"ADDED"), field(2, &field(1, &encode(&object).unwrap()))].concat());
}

#[test]
fn nothing_is_written_without_a_field_that_it_has() {
    let refused = |object: Value| encode(&object).unwrap_err().to_string();
    let spec = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"dnsPolicies": "x"}});
    assert_eq!(refused(spec), "the field dnsPolicies of io.k8s.api.core.v1.PodSpec has no protobuf form");
    let port = json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": "http"}]}});
    assert_eq!(refused(port), "port has no protobuf form");
    let custom = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {}});
    assert_eq!(refused(custom), "Thing of example.com/v1 has no protobuf form");
    // What kind the objects within another are, Go's messages do not say.
    let sets = json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "spec": {"volumeClaimTemplates": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}}]}});
    let back = document(&encode(&sets).unwrap()).unwrap();
    assert_eq!(back["spec"]["volumeClaimTemplates"], json!([{"metadata": {"name": "a"}}]));
}

#[test]
fn schemas_of_definitions_keep_their_forms() {
    let schema = json!({"type": "object", "maximum": 3, "minimum": 0.5, "default": {"a": [null, 1.5]}, "enum": ["a", null, 1],
        "items": {"type": "string"}, "additionalProperties": false, "additionalItems": {"type": "string"},
        "dependencies": {"a": ["b"], "c": {"type": "string"}}, "x-kubernetes-int-or-string": true, "minLength": 0,
        "properties": {"a": {"items": [{"type": "string"}, {"type": "integer"}], "additionalProperties": true}}});
    let versions = json!([{"name": "v1", "served": false, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "spec": {"group": "example.com", "versions": versions}});
    check(&encode(&crd).unwrap(), &crd);
}

/// The field of a message, which may be one of those that it embeds.
fn named<'a>(message: &'a str, name: &str) -> Option<&'a Field> {
    MESSAGES[message].values().find_map(|field| match field.name.as_str() {
        "" => named(&field.nested, name),
        own => (own == name).then_some(field),
    })
}

/// What a value of the schema must be written as; messages are looked into by the caller.
fn fits(schema: &Schema, code: &str, nested: &str) -> bool {
    let type_name = schema.type_name.rsplit('.').next().unwrap_or_default();
    let items = || schema.items.as_ref().is_some_and(|items| fits(items, &code[1..], nested));
    let entries = || schema.additional.as_ref().is_some_and(|value| fits(value, &code[1..], nested));
    match code {
        "s" => schema.type_ == Type::String && schema.format.is_empty() && !schema.int_or_string,
        "y" => schema.type_ == Type::String && schema.format == "byte",
        "i" => schema.type_ == Type::Integer,
        "b" => schema.type_ == Type::Boolean,
        "d" => schema.type_ == Type::Number,
        "m" => schema.type_ == Type::Object && schema.type_name == nested,
        "w" => schema.items.as_ref().is_some_and(|items| fits(items, "s", "")),
        "T" => type_name == "Time",
        "U" => type_name == "MicroTime",
        "Q" => type_name == "Quantity",
        "I" => type_name == "IntOrString",
        "R" => matches!(type_name, "RawExtension" | "FieldsV1"),
        "J" => type_name == "JSON",
        "A" => type_name == "JSONSchemaPropsOrArray",
        "B" => type_name == "JSONSchemaPropsOrBool",
        "C" => type_name == "JSONSchemaPropsOrStringArray",
        _ if code.starts_with('*') => schema.type_ == Type::Array && items(),
        _ if code.starts_with('{') => schema.type_ == Type::Object && entries(),
        _ => false,
    }
}

/// Every kind that is served or answered, by its type.
fn kinds() -> BTreeSet<String> {
    let resources = crate::registry::builtin::resources();
    let own = resources.iter().map(|resource| resource.schema.type_name.clone());
    let meta = ["DeleteOptions", "Status"].map(|kind| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"));
    let others = ["policy.v1.Eviction", "autoscaling.v1.Scale", "core.v1.Binding", "authentication.v1.TokenRequest"];
    own.chain(meta).chain(others.map(|name| format!("io.k8s.api.{name}"))).collect()
}

#[test]
fn every_field_of_every_served_kind_has_a_number_and_its_type() {
    let (mut open, mut seen) = (kinds().into_iter().collect::<Vec<_>>(), BTreeSet::new());
    assert!(open.len() > 50);
    while let Some(message) = open.pop() {
        if !seen.insert(message.clone()) {
            continue;
        }
        assert!(MESSAGES.contains_key(&message), "{message} has no message");
        let schema = builtin::definition(&message).unwrap_or_else(|| panic!("{message} has no schema"));
        for (name, of) in &schema.properties {
            let Some(field) = named(&message, name) else {
                assert!(matches!(name.as_str(), "apiVersion" | "kind"), "{message} lacks {name}");
                continue;
            };
            assert!(fits(of, &field.code, &field.nested), "{message}: {name} is no {} {}", field.code, field.nested);
            if !field.nested.is_empty() {
                open.push(field.nested.clone());
            }
        }
    }
}

#[test]
fn embedded_messages_are_fields_of_their_holder() {
    let rule = [field(1, b"apps"), field(2, b"v1"), field(3, b"deployments")].concat();
    let hook = [field(1, b"h"), field(3, &[field(1, b"CREATE"), field(2, &rule)].concat())].concat();
    let document =
        document(&body("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", &field(2, &hook))).unwrap();
    assert_eq!(
        document["webhooks"][0]["rules"],
        json!([{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}])
    );
}

/// Chooses by a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    /// A value that JSON and protobuf tell alike: no zeros, nothing empty.
    fn value(&mut self, schema: &Schema, depth: u64) -> Value {
        let schema = builtin::definition(&schema.type_name).map_or_else(|| schema.clone(), |whole| (*whole).clone());
        let props = || builtin::definition(&schema.type_name.replace("JSONSchemaPropsOrArray", "JSONSchemaProps"));
        match (schema.type_name.rsplit('.').next().unwrap_or_default(), &schema.type_) {
            ("Quantity", _) => "100m".into(),
            ("IntOrString", _) => [json!(8), json!("50%")][self.below(2) as usize].clone(),
            ("Time", _) => "2026-01-02T03:04:05Z".into(),
            ("MicroTime", _) => "2026-01-02T03:04:05.000600Z".into(),
            ("RawExtension" | "FieldsV1", _) => json!({"f:a": {".": {}}}),
            ("JSON", _) => [json!({"a": [null]}), json!("x"), json!(1.5)][self.below(3) as usize].clone(),
            ("JSONSchemaPropsOrArray", _) if depth > 0 => self.value(&props().unwrap(), depth - 1),
            ("JSONSchemaPropsOrArray", _) => json!([{"type": "string"}]),
            ("JSONSchemaPropsOrBool", _) => [json!(true), json!(false)][self.below(2) as usize].clone(),
            ("JSONSchemaPropsOrStringArray", _) => json!(["a", "b"]),
            (_, Type::Boolean) => true.into(),
            (_, Type::Integer) => [json!(7), json!(-3), json!(1_i64 << 40)][self.below(3) as usize].clone(),
            (_, Type::Number) => [json!(7), json!(0.25)][self.below(2) as usize].clone(),
            (_, Type::Array) => {
                let items = schema.items.clone().unwrap_or_default();
                (0..=self.below(2)).map(|_| self.value(&items, depth.saturating_sub(1))).collect()
            }
            (_, Type::Object) => match &schema.additional {
                Some(entry) => json!({"a": self.value(entry, depth.saturating_sub(1)), "b/c": self.value(entry, 0)}),
                None => self.object(&schema, depth),
            },
            _ if schema.format == "byte" => "YWI=".into(),
            _ => format!("text {}", self.below(100)).into(),
        }
    }

    fn object(&mut self, schema: &Schema, depth: u64) -> Value {
        let fields = schema.properties.iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"));
        let is_schema = |of: &Schema| of.type_name.contains("JSONSchemaProps");
        let recursive = |of: &Schema| {
            is_schema(of) || [&of.items, &of.additional].into_iter().flatten().any(|inner| is_schema(inner))
        };
        let mut object = serde_json::Map::new();
        for (name, of) in fields {
            if self.below(3) > 0 && (depth > 0 || !recursive(of)) {
                object.insert(name.clone(), self.value(of, depth.saturating_sub(1)));
            }
        }
        Value::Object(object)
    }

    /// Puts anything anywhere.
    fn disturb(&mut self, value: &mut Value) {
        if self.below(8) == 0 {
            let other =
                [json!(null), json!([null]), json!({"x": 1}), json!(-1.5), json!(u64::MAX), json!("\u{0}"), json!([])];
            *value = other[self.below(7) as usize].clone();
            return;
        }
        match value {
            Value::Object(map) => map.values_mut().for_each(|value| self.disturb(value)),
            Value::Array(items) => items.iter_mut().for_each(|value| self.disturb(value)),
            _ => {}
        }
    }
}

/// An object of one of the kinds, with its type.
fn object(dice: &mut Dice) -> Value {
    let resources = crate::registry::builtin::resources();
    let resource = &resources[dice.below(resources.len() as u64) as usize];
    let mut object = dice.object(&resource.schema, 6);
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.clone().into();
    object
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = document(&bytes);
        for (api_version, kind) in [("v1", "Pod"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition")] {
            let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
            let mut raw = Vec::new();
            wire::bytes(2, &bytes, &mut raw);
            let _ = document(&[MAGIC.to_vec(), field(1, &meta), raw].concat());
        }
    }

    #[test]
    fn objects_of_every_kind_come_back_as_they_were(seed in any::<u64>()) {
        let object = object(&mut Dice(seed));
        prop_assert_eq!(document(&encode(&object).unwrap()).unwrap(), object);
    }

    #[test]
    fn encoding_any_object_does_not_panic(seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let mut object = object(&mut dice);
        dice.disturb(&mut object);
        if let Ok(bytes) = encode(&object) {
            let _ = document(&bytes);
        }
    }
}
