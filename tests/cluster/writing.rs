//! Writing: create, apply from the client and on the server, conflicts, edit, the three patches, replace, label,
//! annotate, diff, dry run.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, template, text};

pub(crate) const TESTS: &[Test] = &[
    ("client_side_apply_merges_three_ways", client_side_apply_merges_three_ways),
    ("server_side_apply_knows_owners", server_side_apply_knows_owners),
    ("patches_of_each_type", patches_of_each_type),
    ("edit_replace_label_annotate", edit_replace_label_annotate),
    ("diff_and_dry_run_change_nothing", diff_and_dry_run_change_nothing),
    ("mistakes_are_named_with_their_field", mistakes_are_named_with_their_field),
    ("an_old_version_conflicts", an_old_version_conflicts),
];

fn map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

fn deployment(replicas: i32) -> Value {
    let labels = json!({"app": "d"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
           "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}})
}

fn client_side_apply_merges_three_ways() -> Result<()> {
    let space = Namespace::new("apply")?;
    space.apply(&map(&json!({"mine": "1", "gone": "1"})).to_string())?;
    space.kubectl(&["patch", "cm", "m", "--type=merge", "-p", r#"{"data":{"theirs":"1"}}"#])?;
    space.apply(&map(&json!({"mine": "2"})).to_string())?;
    let data = space.get("cm", "m")?["data"].clone();
    ensure!(data == json!({"mine": "2", "theirs": "1"}), "{data}");
    Ok(())
}

fn server_side_apply_knows_owners() -> Result<()> {
    let space = Namespace::new("ssa")?;
    let apply = |manager: &str, data: Value, force: bool| {
        let manager = format!("--field-manager={manager}");
        let mut words = vec!["apply", "--server-side", &manager, "-f", "-"];
        words.extend(force.then_some("--force-conflicts"));
        space.feed(&words, map(&data).to_string().as_bytes())
    };
    ensure!(apply("a", json!({"k": "1", "l": "1"}), false)?.status.success(), "first apply");
    let conflict = apply("b", json!({"k": "2"}), false)?;
    let why = text(&conflict.stderr);
    ensure!(!conflict.status.success() && why.contains("conflict with \"a\": .data.k"), "{why}");
    ensure!(apply("b", json!({"k": "2"}), true)?.status.success(), "forced apply");
    // What its owner no longer wants goes, and what somebody else owns stays.
    ensure!(apply("a", json!({}), false)?.status.success(), "apply of nothing");
    let data = space.get("cm", "m")?["data"].clone();
    ensure!(data == json!({"k": "2"}), "{data}");
    Ok(())
}

fn patches_of_each_type() -> Result<()> {
    let space = Namespace::new("patch")?;
    space.apply(&deployment(0).to_string())?;
    let patch = |kind: &str, patch: Value| {
        space.kubectl(&["patch", "deployment", "d", &format!("--type={kind}"), "-p", &patch.to_string()])
    };
    let env =
        || -> Result<Value> { Ok(space.get("deployment", "d")?["spec"]["template"]["spec"]["containers"].clone()) };
    patch(
        "strategic",
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}}}}),
    )?;
    patch(
        "strategic",
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "B", "value": "2"}]}]}}}}),
    )?;
    let containers = env()?;
    ensure!(
        containers[0]["env"].as_array().is_some_and(|env| env.len() == 2) && containers[0]["image"].is_string(),
        "{containers}"
    );
    patch(
        "strategic",
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "$patch": "delete"}]}]}}}}),
    )?;
    ensure!(env()?[0]["env"] == json!([{"name": "B", "value": "2"}]), "{}", env()?);
    patch(
        "json",
        json!([{"op": "test", "path": "/spec/replicas", "value": 0}, {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]),
    )?;
    let failed = space.output(&[
        "patch",
        "deployment",
        "d",
        "--type=json",
        "-p",
        r#"[{"op":"test","path":"/spec/replicas","value":5}]"#,
    ])?;
    ensure!(!failed.status.success(), "a failed test of a JSON patch was accepted");
    patch("merge", json!({"metadata": {"labels": null}}))?;
    ensure!(space.get("deployment", "d")?["metadata"]["labels"].is_null(), "the merge patch removed nothing");
    Ok(())
}

fn edit_replace_label_annotate() -> Result<()> {
    let space = Namespace::new("edit")?;
    space.kubectl(&["create", "configmap", "m", "--from-literal=k=before"])?;
    let edited =
        space.command("kubectl").args(["edit", "cm", "m"]).env("KUBE_EDITOR", "sed -i s/before/after/").output()?;
    ensure!(edited.status.success(), "{}", text(&edited.stderr));
    ensure!(space.get("cm", "m")?["data"]["k"] == "after", "edit changed nothing");
    let replaced = space.feed(&["replace", "-f", "-"], map(&json!({"k": "new"})).to_string().as_bytes())?;
    ensure!(replaced.status.success(), "{}", text(&replaced.stderr));
    let forced = space.feed(&["replace", "--force", "-f", "-"], map(&json!({"k": "newer"})).to_string().as_bytes())?;
    ensure!(forced.status.success(), "{}", text(&forced.stderr));
    space.kubectl(&["label", "cm", "m", "a=1", "b=2"])?;
    let again = space.output(&["label", "cm", "m", "a=3"])?;
    ensure!(text(&again.stderr).contains("--overwrite"), "{again:?}");
    space.kubectl(&["label", "cm", "m", "a=3", "b-", "--overwrite"])?;
    space.kubectl(&["annotate", "cm", "m", "note=hello"])?;
    let metadata = space.get("cm", "m")?["metadata"].clone();
    ensure!(metadata["labels"] == json!({"a": "3"}) && metadata["annotations"]["note"] == "hello", "{metadata}");
    space.kubectl(&["create", "secret", "generic", "s", "--from-literal=p=w"])?;
    space.kubectl(&["create", "deployment", "web", "--image=ferrovirt.local/pause:v0.1.0", "--replicas=0"])?;
    space.kubectl(&["create", "quota", "q", "--hard=pods=3"])?;
    space.kubectl(&["create", "job", "j", "--image=ferrovirt.local/component:v0.1.0", "--", "busybox", "true"])?;
    Ok(())
}

fn diff_and_dry_run_change_nothing() -> Result<()> {
    let space = Namespace::new("diff")?;
    space.apply(&map(&json!({"k": "1"})).to_string())?;
    let changed = map(&json!({"k": "2"})).to_string();
    let diff = space.feed(&["diff", "-f", "-"], changed.as_bytes())?;
    let shown = text(&diff.stdout);
    ensure!(diff.status.code() == Some(1) && shown.contains("-  k: \"1\"") && shown.contains("+  k: \"2\""), "{shown}");
    for mode in ["client", "server"] {
        let flag = format!("--dry-run={mode}");
        let dry = space.feed(&["apply", &flag, "-f", "-"], changed.as_bytes())?;
        ensure!(
            text(&dry.stdout).contains(&format!("({mode} dry run)").replace("client ", "")),
            "{}",
            text(&dry.stdout)
        );
    }
    ensure!(space.get("cm", "m")?["data"]["k"] == "1", "a dry run wrote");
    let same = space.feed(&["diff", "-f", "-"], map(&json!({"k": "1"})).to_string().as_bytes())?;
    ensure!(same.status.code() == Some(0), "{}", text(&same.stdout));
    Ok(())
}

fn mistakes_are_named_with_their_field() -> Result<()> {
    let space = Namespace::new("mistakes")?;
    let check = |manifest: &Value, words: &str| -> Result<()> {
        let complaint = space.refused(&manifest.to_string())?;
        ensure!(complaint.contains(words), "{words:?} is not in: {complaint}");
        Ok(())
    };
    let mut unknown = deployment(1);
    unknown["spec"]["replicass"] = json!(1);
    check(&unknown, "unknown field \"spec.replicass\"")?;
    let mut selector = deployment(1);
    selector["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
    check(&selector, "`selector` does not match template `labels`")?;
    let mut name = map(&json!({}));
    name["metadata"]["name"] = json!("Not_a_name");
    check(&name, "metadata.name")?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}});
    check(&pod, "spec.containers: Required value")?;
    let absent = json!({"apiVersion": "example.org/v1", "kind": "Nothing", "metadata": {"name": "p"}});
    check(&absent, "no matches for kind \"Nothing\"")?;
    Ok(())
}

fn an_old_version_conflicts() -> Result<()> {
    let space = Namespace::new("old")?;
    space.apply(&map(&json!({"k": "1"})).to_string())?;
    let old = space.get("cm", "m")?;
    space.kubectl(&["label", "cm", "m", "a=b"])?;
    let late = space.feed(&["replace", "-f", "-"], old.to_string().as_bytes())?;
    let why = text(&late.stderr);
    ensure!(why.contains("(Conflict)") && why.contains("the object has been modified"), "{why}");
    let twice = space.feed(&["create", "-f", "-"], map(&json!({})).to_string().as_bytes())?;
    ensure!(text(&twice.stderr).contains("(AlreadyExists)"), "{}", text(&twice.stderr));
    Ok(())
}
