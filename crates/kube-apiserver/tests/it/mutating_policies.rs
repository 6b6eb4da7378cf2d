//! Mutating admission policies through the API: what they make of objects, when they run, and how they fail.

use apimachinery::request::User;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

const POLICIES: &str = "mutatingadmissionpolicies";
const BINDINGS: &str = "mutatingadmissionpolicybindings";

async fn post(client: &Client, kind: &str, body: Value) -> Result<Value, Error> {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await
}

fn rules(resource: &str) -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]}]})
}

/// Adds a policy about a resource, and its binding of the same name.
async fn bind(client: &Client, name: &str, resource: &str, spec: Value, binding: Value) {
    let mut policy = json!({"metadata": {"name": name},
        "spec": {"matchConstraints": rules(resource), "reinvocationPolicy": "Never"}});
    json_patch::merge(&mut policy["spec"], &spec);
    let mut bound = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    json_patch::merge(&mut bound["spec"], &binding);
    post(client, POLICIES, policy).await.unwrap();
    post(client, BINDINGS, bound).await.unwrap();
}

fn configured(expression: &str) -> Value {
    json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]})
}

fn patched(expression: &str) -> Value {
    json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]})
}

/// A server with one policy about config maps.
async fn with(spec: Value) -> (ApiServer, Client) {
    let server = super::server().await;
    let client = server.client();
    bind(&client, "p", "configmaps", spec, json!({})).await;
    (server, client)
}

fn map(name: &str, data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap()
}

async fn create(client: &Client, name: &str, data: Value) -> Result<ConfigMap, Error> {
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &map(name, data)).await
}

async fn labels(client: &Client, name: &str, data: Value) -> Value {
    json!(create(client, name, data).await.unwrap().metadata.labels)
}

#[track_caller]
fn refused(outcome: Result<ConfigMap, Error>, words: &str) {
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!((status.code, status.reason.as_str()), (403, "Invalid"), "{}", status.message);
    let start = "policy 'p' with binding 'p' denied request: ";
    assert!(status.message.starts_with(start) && status.message.contains(words), "{}", status.message);
}

const LABEL: &str = "Object{metadata: Object.metadata{labels: {'by': 'policy'}}}";

#[tokio::test]
async fn a_label_is_added_and_a_container_joins() {
    let (_server, client) = with(configured(LABEL)).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let shown = maps.create(&dry, &map("dry", json!({}))).await.unwrap();
    assert_eq!(json!(shown.metadata.labels), json!({"by": "policy"}));
    assert!(maps.get_opt("dry").await.unwrap().is_none());
    let made = create(&client, "a", json!({"k": "v"})).await.unwrap();
    assert_eq!((json!(made.metadata.labels), json!(made.data)), (json!({"by": "policy"}), json!({"k": "v"})));
    let owned = json!(made.metadata.managed_fields).to_string();
    assert!(!owned.contains("f:by") && owned.contains("f:k"), "{owned}");
    let bare: Patch<Value> = Patch::Merge(json!({"metadata": {"labels": null}}));
    let kept = maps.patch("a", &PatchParams::default(), &bare).await.unwrap();
    assert_eq!(json!(kept.metadata.labels), json!({"by": "policy"}));

    let join = "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'mesh', image: 'mesh:1'}]}}";
    bind(&client, "join", "pods", configured(join), json!({})).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "args": ["x"]}]}});
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let containers = json!(pod.spec.unwrap().containers);
    assert_eq!((&containers[0]["name"], &containers[0]["args"]), (&json!("c"), &json!(["x"])));
    assert_eq!((&containers[1]["name"], &containers[1]["image"]), (&json!("mesh"), &json!("mesh:1")));
    assert_eq!(containers[1]["terminationMessagePath"], "/dev/termination-log");

    let path = format!("/apis/admissionregistration.k8s.io/v1/{BINDINGS}/p");
    client.request::<Value>(http::Request::delete(path).body(Vec::new()).unwrap()).await.unwrap();
    assert_eq!(labels(&client, "b", json!({})).await, Value::Null);
    maps.delete("b", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_patch_whose_test_does_not_hold_changes_nothing() {
    let patch = "[JSONPatch{op: 'test', path: '/data/mode', value: 'auto'}, \
        JSONPatch{op: 'add', path: '/metadata/labels', value: {}}, \
        JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/by'), value: 'patch'}]";
    let (_server, client) = with(patched(patch)).await;
    assert_eq!(labels(&client, "a", json!({"mode": "auto"})).await, json!({"example.com/by": "patch"}));
    assert_eq!(labels(&client, "b", json!({"mode": "manual"})).await, Value::Null);
    assert_eq!(labels(&client, "c", json!({"other": "x"})).await, Value::Null);
}

#[tokio::test]
async fn parameters_conditions_and_variables() {
    let server = super::server().await;
    let client = server.client();
    for team in ["red", "blue"] {
        let mut parameter = map(&format!("team-{team}"), json!({"team": team}));
        parameter.metadata.labels = Some([("kind".to_owned(), "team".to_owned())].into());
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        maps.create(&PostParams::default(), &parameter).await.unwrap();
    }
    let mut spec = configured("Object{metadata: Object.metadata{labels: {variables.key: string(variables.count)}}}");
    spec["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    spec["matchConditions"] = json!([{"name": "a", "expression": "object.metadata.name.startsWith('a')"}]);
    spec["variables"] = json!([{"name": "key", "expression": "'team-' + params.data.team"},
        {"name": "count", "expression": "size(object.metadata.?labels.orValue({}))"}]);
    let by_label =
        json!({"paramRef": {"selector": {"matchLabels": {"kind": "team"}}, "parameterNotFoundAction": "Deny"}});
    bind(&client, "p", "configmaps", spec, by_label).await;
    // Each parameter's run sees what the one before it made.
    assert_eq!(labels(&client, "a", json!({})).await, json!({"team-blue": "0", "team-red": "1"}));
    assert_eq!(labels(&client, "b", json!({})).await, Value::Null);
    let path = format!("/apis/admissionregistration.k8s.io/v1/{BINDINGS}/p");
    let absent = json!({"spec": {"paramRef": {"selector": {"matchLabels": {"kind": "none"}}}}});
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    client.request::<Value>(request.body(absent.to_string().into_bytes()).unwrap()).await.unwrap();
    refused(
        create(&client, "a2", json!({})).await,
        "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
    );
}

#[tokio::test]
async fn failures_follow_the_policy() {
    for (spec, words) in [
        (configured("Object{data: {'a': object.data.none}}"), "resulted in error: no such key: none"),
        (
            configured("Object{metadata: Object.data{}}"),
            "type mismatch: unexpected type name \"Object.data\", expected \"Object.metadata\"",
        ),
        (
            configured("Object{bogus: 1}"),
            "error applying patch: failed to convert patch object to typed object: .bogus",
        ),
        (
            configured(
                "Object{metadata: Object.metadata{ownerReferences: [Object.metadata.ownerReferences{uid: 'u'}], finalizers: ['a/b']}, immutable: 'no'}",
            ),
            ".immutable: expected boolean, got \"no\"",
        ),
        (
            configured("Object{metadata: Object.metadata{name: 'other'}}"),
            "metadata.name may not be changed by a policy",
        ),
        (patched("[JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}]"), "kind may not be changed by a policy"),
        (patched("[JSONPatch{op: 'add', path: '/bogus', value: 1}]"), "unknown field \"bogus\""),
        (patched("[JSONPatch{op: 'add', path: '/data', value: 'x'}]"), "json: cannot unmarshal string"),
        (patched("[JSONPatch{op: 'remove', path: '/nothing/here'}]"), "operation 0 of the JSON patch, remove"),
    ] {
        let (_server, client) = with(spec.clone()).await;
        refused(create(&client, "a", json!({"k": "v"})).await, words);
        let mut ignored = spec;
        ignored["failurePolicy"] = json!("Ignore");
        let (_server, client) = with(ignored).await;
        let made = create(&client, "a", json!({"k": "v"})).await.unwrap();
        assert_eq!((json!(made.data), made.metadata.labels), (json!({"k": "v"}), None));
    }
    let server = super::server().await;
    let client = server.client();
    let select = "Object{spec: Object.spec{nodeSelector: {'a': 'b'}}}";
    bind(&client, "p", "pods", configured(select), json!({})).await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let outcome = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert!(
        status.message.ends_with("may not mutate atomic arrays, maps or structs: .spec.nodeSelector"),
        "{status:?}"
    );
}

const COUNT: &str = "Object{metadata: Object.metadata{labels: {'seen': \
    string(int(object.metadata.?labels.?seen.orValue('0')) + 1)}}}";

#[tokio::test]
async fn policies_run_again_as_they_ask() {
    for (policy, alone, followed) in [("Never", "1", "1"), ("IfNeeded", "1", "2")] {
        let mut spec = configured(COUNT);
        spec["reinvocationPolicy"] = json!(policy);
        let (_server, client) = with(spec).await;
        assert_eq!(labels(&client, "a", json!({})).await, json!({"seen": alone}), "{policy}");
        bind(&client, "q", "configmaps", configured(LABEL), json!({})).await;
        assert_eq!(labels(&client, "b", json!({})).await, json!({"seen": followed, "by": "policy"}), "{policy}");
    }
}

#[tokio::test]
async fn objects_a_policy_makes_invalid_are_refused() {
    let server = super::server().await;
    let client = server.client();
    bind(&client, "p", "pods", configured("Object{spec: Object.spec{restartPolicy: 'Sometimes'}}"), json!({})).await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let outcome = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!(status.code, 422);
    assert!(status.message.contains("spec.restartPolicy: Unsupported value: \"Sometimes\""), "{}", status.message);
}

#[tokio::test]
async fn cost_and_size_of_mutations_are_bounded() {
    let list = format!("[{}]", vec!["1"; 200].join(","));
    let hostile = format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c > 0))) ? Object{{}} : Object{{}}");
    let mut nested = "[JSONPatch{op: 'add', path: '/data', value: a8}]".to_owned();
    for level in (1..9).rev() {
        let row = vec![format!("a{}", level - 1); 10].join(", ");
        nested = format!("cel.bind(a{level}, [{row}], {nested})");
    }
    let copy = |to: &str| format!("JSONPatch{{op: 'copy', from: '/data', path: '/data/{to}'}}, ");
    let copies = (copy("x") + &copy("y")).repeat(30);
    for (spec, words) in [
        (configured(&hostile), "operation cancelled: actual cost limit exceeded"),
        (patched(&format!("cel.bind(a0, ['x'], {nested})")), "the value is too large: at most 3145728 bytes"),
        (
            patched(&format!("[{}]", copies.trim_end_matches(", "))),
            "the copy operations of a JSON patch may add 3145728 bytes at most",
        ),
    ] {
        let (_server, client) = with(spec).await;
        refused(create(&client, "a", json!({"k": "v".repeat(1000)})).await, words);
    }
    let variables: Vec<Value> = (0..300)
        .map(|n| match n {
            0 => json!({"name": "v0", "expression": "1"}),
            n => json!({"name": format!("v{n}"), "expression": format!("variables.v{} + 1", n - 1)}),
        })
        .collect();
    let mut chained = configured("Object{data: {'a': string(variables.v299)}}");
    chained["variables"] = json!(variables);
    let (_server, client) = with(chained).await;
    refused(create(&client, "a", json!({})).await, "more than 50 variables use one another");
}

#[tokio::test]
async fn status_and_connections_are_changed() {
    let server = super::server().await;
    let client = server.client();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    bind(&client, "s", "pods/status", configured("Object{status: Object.status{message: 'seen'}}"), json!({})).await;
    let status: Patch<Value> = Patch::Merge(json!({"status": {"reason": "Known"}}));
    let pod = pods.patch_status("p", &PatchParams::default(), &status).await.unwrap().status.unwrap();
    assert_eq!((pod.reason.as_deref(), pod.message.as_deref()), (Some("Known"), Some("seen")));
    let mut silenced = patched("[JSONPatch{op: 'remove', path: '/command'}]");
    silenced["matchConditions"] = json!([{"name": "a", "expression": "object.command == ['sh', '-i']"}]);
    bind(&client, "e", "pods/exec", silenced, json!({})).await;
    let mut confused = patched("[JSONPatch{op: 'add', path: '/stdin', value: 'yes'}]");
    confused["matchConditions"] = json!([{"name": "a", "expression": "object.container == 'd'"}]);
    bind(&client, "f", "pods/exec", confused, json!({})).await;
    for (query, words) in [
        ("command=sh&command=-i&container=c&stdout=true", "you must specify at least one command for the container"),
        ("command=sh&container=d&stdout=true", "what admission made of PodExecOptions cannot be read: stdin must be"),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/p/exec?{query}");
        let request = http::Request::post(path).header("connection", "upgrade").header("upgrade", "SPDY/3.1");
        let request = request.header("x-stream-protocol-version", "v4.channel.k8s.io").body(Vec::new()).unwrap();
        match client.request::<Value>(request).await {
            Err(Error::Api(status)) => assert!(status.message.contains(words), "{query}: {}", status.message),
            other => panic!("{query}: expected a refusal, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn broken_mutating_policies_are_refused() {
    let client = super::server().await.client();
    let check = async |kind: &str, spec: Value, field: &str, words: &str| {
        let outcome = post(&client, kind, json!({"metadata": {"name": "p"}, "spec": spec})).await;
        let Err(Error::Api(status)) = outcome else { panic!("{spec}: expected a refusal, got {outcome:?}") };
        assert_eq!(status.code, 422, "{}", status.message);
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        let found = causes.iter().any(|cause| cause.field == field && cause.message.contains(words));
        assert!(found, "{field}: {words}: {causes:?}");
    };
    let policy = |part: Value| {
        let mut spec = json!({"matchConstraints": rules("configmaps"), "reinvocationPolicy": "Never"});
        json_patch::merge(&mut spec, &configured(LABEL));
        json_patch::merge(&mut spec, &part);
        spec
    };
    let mutation = |part: Value| policy(json!({"mutations": [part]}));
    let expression = "spec.mutations[0].applyConfiguration.expression";
    for (spec, field, words) in [
        (
            policy(json!({"mutations": null})),
            "spec.mutations",
            "Required value: mutations must contain at least one item",
        ),
        (policy(json!({"reinvocationPolicy": null})), "spec.reinvocationPolicy", "Required value"),
        (
            policy(json!({"reinvocationPolicy": "Always"})),
            "spec.reinvocationPolicy",
            "Unsupported value: \"Always\": supported values: \"IfNeeded\", \"Never\"",
        ),
        (policy(json!({"failurePolicy": "Maybe"})), "spec.failurePolicy", "Unsupported value: \"Maybe\""),
        (policy(json!({"matchConstraints": null})), "spec.matchConstraints", "Required value"),
        (
            policy(json!({"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE", "DELETE"], "resources": ["pods"]}]}})),
            "spec.matchConstraints.resourceRules.operations",
            "Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
        ),
        (mutation(json!({})), "spec.mutations[0].patchType", "Required value"),
        (
            mutation(json!({"patchType": "Merge"})),
            "spec.mutations[0].patchType",
            "Unsupported value: \"Merge\": supported values: \"ApplyConfiguration\", \"JSONPatch\"",
        ),
        (
            mutation(json!({"patchType": "JSONPatch"})),
            "spec.mutations[0].jsonPatch",
            "Required value: must be specified when patchType is JSONPatch",
        ),
        (
            mutation(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'x'}]"},
                "applyConfiguration": {"expression": LABEL}})),
            "spec.mutations[0].applyConfiguration",
            "Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
        ),
        (
            mutation(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": LABEL}})),
            "spec.mutations[0].jsonPatch.expression",
            "must evaluate to list(JSONPatch) but got Object",
        ),
        (
            mutation(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{what: 1}]"}})),
            "spec.mutations[0].jsonPatch.expression",
            "undefined field 'what'",
        ),
        (policy(configured(" ")), expression, "Required value"),
        (policy(configured("Object{")), expression, "compilation failed: ERROR: <input>:1:"),
        (policy(configured("{'a': 1}")), expression, "must evaluate to Object but got map(string, int)"),
        (policy(configured("Thing{}")), expression, "undeclared reference to 'Thing'"),
        (policy(configured("Object{a: params.b}")), expression, "undeclared reference to 'params'"),
        (policy(configured("Object{a: variables.b}")), expression, "undefined field 'b'"),
        (
            policy(json!({"variables": [{"name": "o", "expression": "Object{}"}]})),
            "spec.variables[0].expression",
            "undeclared reference to 'Object'",
        ),
    ] {
        check(POLICIES, spec, field, words).await;
    }
    check(BINDINGS, json!({}), "spec.policyName", "Required value").await;
    check(
        BINDINGS,
        json!({"policyName": "p", "paramRef": {"parameterNotFoundAction": "Deny"}}),
        "spec.paramRef",
        "Required value: one of name or selector must be specified",
    )
    .await;
    let deletions = json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["*"]}]});
    check(
        BINDINGS,
        json!({"policyName": "p", "matchResources": deletions}),
        "spec.matchResources.resourceRules.operations",
        "Unsupported value: \"DELETE\"",
    )
    .await;
}

#[tokio::test]
async fn writing_a_policy_needs_the_right_to_read_its_parameters() {
    let server = super::server().await;
    let root = server.client();
    let grant = async |name: &str, rule: Value| {
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"});
        let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        let binding = json!({"metadata": {"name": name}, "subjects": [subject], "roleRef": reference});
        let roles: Api<ClusterRole> = Api::all(root.clone());
        roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(root.clone());
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    };
    let policies = json!([POLICIES, BINDINGS]);
    grant("policies", json!({"apiGroups": ["admissionregistration.k8s.io"], "resources": policies, "verbs": ["*"]}))
        .await;
    let ann =
        server.client_as(User { name: "ann".into(), groups: vec!["system:authenticated".into()], ..User::default() });
    let policy = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"matchConstraints": rules("configmaps"),
            "paramKind": {"apiVersion": "v1", "kind": "Secret"}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
                "[JSONPatch{op: 'add', path: '/data', value: {'stolen': string(params.data['key'])}}]"}}]}})
    };
    let binding = json!({"metadata": {"name": "p"}, "spec": {"policyName": "p",
        "paramRef": {"namespace": "kube-system", "name": "key", "parameterNotFoundAction": "Deny"}}});
    let denied = |outcome: Result<Value, Error>, words: &str| {
        let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
        assert!(status.code == 403 && status.message.contains(words), "{}", status.message);
    };
    let every = "must have \"get\" permission on all objects of the referenced paramKind";
    denied(post(&ann, POLICIES, policy("p")).await, every);
    // One of somebody else's is of no use without the right to what the binding names.
    post(&root, POLICIES, policy("p")).await.unwrap();
    denied(
        post(&ann, BINDINGS, binding.clone()).await,
        "must have \"get\" permission on the objects that paramRef names",
    );
    grant("secrets", json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})).await;
    post(&ann, POLICIES, policy("q")).await.unwrap();
    post(&ann, BINDINGS, binding).await.unwrap();
}
