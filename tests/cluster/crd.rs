//! Custom resources: validation with the field named, pruning, defaults, rules, printer columns, versions, status and
//! scale, explanation, and the end of a definition.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;

pub(crate) const TESTS: &[Test] = &[("a_custom_resource_lives_like_any_other", a_custom_resource_lives_like_any_other)];

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.e2e.example.org"},
        "spec": {
            "group": "e2e.example.org", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "shortNames": ["bo"], "categories": ["harbour"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.masts", "statusReplicasPath": ".status.masts"}},
                "additionalPrinterColumns": [
                    {"name": "Colour", "type": "string", "jsonPath": ".spec.colour"},
                    {"name": "Masts", "type": "integer", "jsonPath": ".spec.masts", "priority": 1}
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object", "description": "A boat of the tests.",
                    "properties": {
                        "spec": {
                            "type": "object", "required": ["length"],
                            "x-kubernetes-validations": [{"rule": "self.masts <= self.length", "message": "too many masts"}],
                            "properties": {
                                "length": {"type": "integer", "minimum": 1, "description": "How long it is, in metres."},
                                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                                "masts": {"type": "integer", "default": 1}
                            }
                        },
                        "status": {"type": "object", "properties": {"masts": {"type": "integer"}}}
                    }
                }}
            }]
        }
    })
}

fn a_custom_resource_lives_like_any_other() -> Result<()> {
    let space = Namespace::new("crd")?;
    space.kubectl(&["delete", "crd", "boats.e2e.example.org", "--ignore-not-found"])?;
    space.apply(&definition().to_string())?;
    space.kubectl(&["wait", "crd/boats.e2e.example.org", "--for=condition=Established", "--timeout=60s"])?;
    let boat = |spec: Value| {
        json!({"apiVersion": "e2e.example.org/v1", "kind": "Boat", "metadata": {"name": "b"}, "spec": spec}).to_string()
    };
    let check = |spec: Value, expect: &str| -> Result<()> {
        let complaint = space.refused(&boat(spec))?;
        ensure!(complaint.contains(expect), "{expect:?} is not in: {complaint}");
        Ok(())
    };
    check(json!({}), "spec.length: Required value")?;
    check(
        json!({"length": 0}),
        "spec.length: Invalid value: 0: spec.length in body should be greater than or equal to 1",
    )?;
    check(
        json!({"length": 3, "colour": "green"}),
        "spec.colour: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
    )?;
    check(json!({"length": 3, "masts": 4}), "too many masts")?;
    check(json!({"length": 3, "sails": 4}), "unknown field \"spec.sails\"")?;
    let lax =
        space.feed(&["apply", "--validate=ignore", "-f", "-"], boat(json!({"length": 3, "sails": 4})).as_bytes())?;
    ensure!(lax.status.success(), "{lax:?}");
    let spec = space.get("boat", "b")?["spec"].clone();
    ensure!(spec == json!({"length": 3, "colour": "red", "masts": 1}), "pruned and defaulted: {spec}");
    // Applied again with a change, from which kubectl makes a patch; of a null the schema does not want nothing is left.
    space.apply(&boat(json!({"length": 4, "masts": null})))?;
    space.apply(&boat(json!({"length": 3, "colour": null})))?;
    let spec = space.get("boat", "b")?["spec"].clone();
    ensure!(spec == json!({"length": 3, "colour": "red", "masts": 1}), "applied again: {spec}");
    let table = space.kubectl(&["get", "bo"])?;
    ensure!(
        table.lines().next().map(|line| line.split_whitespace().collect::<Vec<_>>()) == Some(vec!["NAME", "COLOUR"]),
        "{table}"
    );
    let wide = space.kubectl(&["get", "harbour", "-o", "wide"])?;
    ensure!(wide.contains("MASTS"), "{wide}");
    space.kubectl(&["scale", "boat/b", "--replicas=2"])?;
    space.kubectl(&[
        "patch",
        "boat",
        "b",
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"masts":2},"spec":{"length":9}}"#,
    ])?;
    let object = space.get("boat", "b")?;
    ensure!(
        object["spec"]["masts"] == 2 && object["spec"]["length"] == 3 && object["status"]["masts"] == 2,
        "{object}"
    );
    ensure!(object["metadata"]["generation"] == 4, "{}", object["metadata"]);
    let explained = e2e::until("the new kind was explained", || {
        let output = space.output(&["explain", "boat.spec"])?;
        Ok(output.status.success().then(|| crate::pods::text(&output.stdout)))
    })?;
    ensure!(explained.contains("How long it is, in metres."), "{explained}");
    ensure!(space.kubectl(&["explain", "boat", "--recursive"])?.contains("colour"), "recursive");
    // The definition takes its objects with it.
    space.kubectl(&["delete", "crd", "boats.e2e.example.org", "--timeout=60s"])?;
    let path = format!("/apis/e2e.example.org/v1/namespaces/{}/boats", space.name());
    let gone = space.output(&["get", "--raw", &path])?;
    ensure!(crate::pods::text(&gone.stderr).contains("(NotFound)"), "{gone:?}");
    Ok(())
}
