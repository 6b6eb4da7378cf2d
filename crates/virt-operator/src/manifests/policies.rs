//! Admission policies. Most bind each node agent's token to its own node, and there to what it has to say; one asks whether who wants a
//! template of a machine may have it.
//!
//! RBAC grants by kind; a stolen token of one node could otherwise rewrite every other node's machines. No policy is asked about reading: that
//! is bound where the API server narrows the roles of agents to their node, as the embedded cluster's does. Elsewhere each node's token reads
//! all machines.

use api::kubevirt::constants::{annotation, label};
use serde_json::{Value, json};

use super::Input;

const NODE: &str = "request.userInfo.extra['authentication.kubernetes.io/node-name'][0]";

/// The policies and their bindings.
pub fn render(input: &Input) -> Vec<Value> {
    let user = format!("system:serviceaccount:{}:kubevirt-handler", input.namespace);
    let names = ["kubevirt-node-restriction-policy", "kubevirt-node-restriction-binding"];
    let mut out = policy(names, &user, &rule("", "nodes"), &own_node()).to_vec();
    let names = ["kubevirt-handler-own-machines"; 2];
    out.extend(policy(names, &user, &rule("kubevirt.io", "virtualmachineinstances"), &own_machines()));
    let names = ["kubevirt-handler-own-events"; 2];
    out.extend(policy(names, &user, &rule("", "events"), &own_events()));
    let names = ["kubevirt-handler-events-of-own-machines"; 2];
    let [mut events, mut binding] = policy(names, &user, &rule("", "events"), &[events_of_own_machines()]);
    // The machines of the event's namespace, each of which has something against it or not.
    events["spec"]["paramKind"] = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance" });
    binding["spec"]["paramRef"] = json!({ "selector": {}, "parameterNotFoundAction": "Allow" });
    out.extend([events, binding]);
    out.extend(templates_of_machines());
    out
}

/// virt-controller copies the disks: it is asked here whether the user may have the copies, and the template.
fn templates_of_machines() -> [Value; 2] {
    let name = "virt-template-vmtr-authz";
    let may = |group: &str, resource: &str, namespace: &str, more: &str| {
        format!(
            "authorizer.group('{group}').resource('{resource}'){more}.namespace(variables.{namespace}).check('create').allowed()"
        )
    };
    let check = |expression: String, message: &str| json!({ "expression": expression, "messageExpression": message, "reason": "Forbidden" });
    let source = may("template.kubevirt.io", "virtualmachinetemplaterequests", "source", ".subresource('source')");
    let source = source.replace(".check(", ".name(variables.machine).check(");
    let variable = |name: &str, expression: &str| json!({ "name": name, "expression": expression });
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["template.kubevirt.io"], "apiVersions": ["*"],
                    "resources": ["virtualmachinetemplaterequests"], "operations": ["CREATE"],
                }] },
                "variables": [
                    variable("source", "object.spec.virtualMachineRef.namespace"),
                    variable("machine", "object.spec.virtualMachineRef.name"),
                    variable("target", "object.metadata.namespace"),
                ],
                "validations": [
                    check(
                        format!("variables.source == variables.target || {source}"),
                        "'User is not allowed to use VirtualMachine ' + variables.source + '/' + variables.machine + ' as a source for VirtualMachineTemplateRequests'",
                    ),
                    check(
                        may("cdi.kubevirt.io", "datavolumes", "target", ""),
                        "'User is not allowed to create DataVolumes in namespace ' + variables.target",
                    ),
                    check(
                        may("template.kubevirt.io", "virtualmachinetemplates", "target", ""),
                        "'User is not allowed to create VirtualMachineTemplates in namespace ' + variables.target",
                    ),
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}

fn rule(group: &str, resource: &str) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": ["*"], "resources": [resource, format!("{resource}/*")],
        "operations": ["CREATE", "UPDATE"],
    })
}

/// A check, and what is said when it fails.
type Check = (String, &'static str);

/// Whether a part of the object is what it was.
fn kept(path: &str) -> String {
    format!(
        "(has(object.{path}) ? (has(oldObject.{path}) && object.{path} == oldObject.{path}) : !has(oldObject.{path}))"
    )
}

/// Whether a map of the metadata has the entries it had, but for keys that are `free` (an expression over `k`).
fn kept_but(map: &str, free: &str) -> String {
    let half = |one: &str, other: &str| {
        format!(
            "(!has({one}.metadata.{map}) || {one}.metadata.{map}.all(k, {free} || (has({other}.metadata.{map}) && \
             k in {other}.metadata.{map} && {other}.metadata.{map}[k] == {one}.metadata.{map}[k])))"
        )
    };
    format!("{} && {}", half("object", "oldObject"), half("oldObject", "object"))
}

fn own_node() -> Vec<Check> {
    let ours = "k.contains('kubevirt.io/')";
    vec![
        (format!("object.metadata.name == {NODE}"), "virt-handler may change only the node it runs on"),
        (
            format!("oldObject != null && {} && {}", kept("spec"), kept("metadata.ownerReferences")),
            "virt-handler may not change the specification of a node",
        ),
        (
            format!("oldObject != null && {} && {}", kept_but("labels", ours), kept_but("annotations", ours)),
            "virt-handler may change only labels and annotations of kubevirt.io",
        ),
    ]
}

fn own_machines() -> Vec<Check> {
    let labelled = |key: &str| {
        format!(
            "(has(oldObject.metadata.labels) && '{key}' in oldObject.metadata.labels && \
             oldObject.metadata.labels['{key}'] == {NODE})"
        )
    };
    // A machine is of the node it runs on, and of the one virt-controller has it moved to.
    let theirs = format!("{} || {}", labelled(label::NODE_NAME), labelled(label::MIGRATION_TARGET_NODE));
    let name = label::NODE_NAME;
    // The node that a machine has arrived at takes it, by its own name.
    let taken = format!("(k == '{name}' && object.metadata.labels['{name}'] == {NODE})");
    let told = format!("k == '{}'", annotation::MIGRATION_PROGRESS);
    let status = |object: &str| format!("(has({object}.status) && has({object}.status.nodeName))");
    vec![
        (
            format!("oldObject != null && ({theirs})"),
            "virt-handler may change only the virtual machines of the node it runs on, or those being moved to it",
        ),
        (
            format!(
                "oldObject != null && object.spec == oldObject.spec && {} && {}",
                kept("metadata.finalizers"),
                kept("metadata.ownerReferences")
            ),
            "virt-handler may not change the specification of a virtual machine",
        ),
        (
            format!(
                "oldObject != null && has(object.metadata.labels) && '{name}' in object.metadata.labels && {} && {}",
                kept_but("labels", &taken),
                kept_but("annotations", &told)
            ),
            "virt-handler may not change labels and annotations of a virtual machine",
        ),
        (
            format!(
                "oldObject != null && (!{} || object.status.nodeName == {NODE} || ({} && \
                 object.status.nodeName == oldObject.status.nodeName))",
                status("object"),
                status("oldObject")
            ),
            "virt-handler may not say that a virtual machine runs on another node",
        ),
        (
            "oldObject != null && (has(object.status) && has(object.status.activePods) ? (has(oldObject.status) && \
             has(oldObject.status.activePods) && object.status.activePods == oldObject.status.activePods) : \
             !(has(oldObject.status) && has(oldObject.status.activePods)))"
                .to_owned(),
            "virt-handler may not say which pods are of a virtual machine",
        ),
    ]
}

fn own_events() -> Vec<Check> {
    let about = format!(
        "has(object.involvedObject.kind) && has(object.involvedObject.name) && \
         (object.involvedObject.kind == 'Node' ? object.involvedObject.name == {NODE} : \
         object.involvedObject.kind == 'VirtualMachineInstance' && has(object.involvedObject.namespace) && \
         object.involvedObject.namespace == object.metadata.namespace)"
    );
    let by = |object: &str| {
        format!(
            "has({object}.source) && has({object}.source.component) && {object}.source.component == 'virt-handler' && \
             has({object}.source.host) && {object}.source.host == {NODE}"
        )
    };
    vec![
        (about, "virt-handler may write events only about its own node and about virtual machines"),
        (
            format!("{} && (oldObject == null || ({}))", by("object"), by("oldObject")),
            "virt-handler may write events only in its own name, with its node",
        ),
    ]
}

/// A machine has something against an event that is about it, unless the agent's node has or had to do with it: the node that a machine has
/// left still tells how it left.
fn events_of_own_machines() -> Check {
    let labelled = |key: &str| {
        format!(
            "(has(params.metadata.labels) && '{key}' in params.metadata.labels && params.metadata.labels['{key}'] == {NODE})"
        )
    };
    let moved = |field: &str| {
        let state = "params.status.migrationState";
        format!("(has(params.status) && has({state}) && has({state}.{field}) && {state}.{field} == {NODE})")
    };
    let other =
        "object.involvedObject.kind != 'VirtualMachineInstance' || object.involvedObject.name != params.metadata.name";
    let own =
        [labelled(label::NODE_NAME), labelled(label::MIGRATION_TARGET_NODE), moved("sourceNode"), moved("targetNode")];
    let check = format!("{other} || {}", own.join(" || "));
    (
        check,
        "virt-handler may write events only about virtual machines of the node it runs on, or those being moved from or to it",
    )
}

fn policy([name, binding]: [&str; 2], user: &str, rule: &Value, checks: &[Check]) -> [Value; 2] {
    let bound = "has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra";
    let mut validations =
        vec![json!({ "expression": bound, "message": "the token of virt-handler is not bound to a node" })];
    validations.extend(checks.iter().map(|(check, why)| json!({ "expression": check, "message": why })));
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [rule] },
                "matchConditions": [
                    { "name": "is-virt-handler", "expression": format!("request.userInfo.username == '{user}'") },
                ],
                "validations": validations,
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": binding },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}
