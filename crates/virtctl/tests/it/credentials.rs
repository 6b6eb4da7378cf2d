//! credentials: what is changed in the cluster, and what is left alone.

use serde_json::{Value, json};

use crate::cluster::said;
use crate::server::{Answer, Server, not_found};

const KEY: &str = "ssh-ed25519 AAAAC3Nza me@here";
/// `ssh-rsa OLD them`
const HELD: &str = "c3NoLXJzYSBPTEQgdGhlbQ==";

fn machine(name: &str, credentials: &Value) -> Answer {
    Answer::Object(
        200,
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": name, "namespace": "default", "uid": "u", "resourceVersion": "7" },
            "spec": { "template": { "spec": { "domain": { "devices": {} }, "accessCredentials": credentials } } },
        }),
    )
}

fn keys(secret: &str, user: &str) -> Value {
    let way = json!({ "qemuGuestAgent": { "users": [user] } });
    json!({ "sshPublicKey": { "source": { "secret": { "secretName": secret } }, "propagationMethod": way } })
}

fn secret(name: &str, owner: Option<&str>) -> Answer {
    let owners: Vec<Value> = owner
        .map(|uid| json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo", "uid": uid }))
        .into_iter()
        .collect();
    Answer::Object(
        200,
        json!({
            "apiVersion": "v1", "kind": "Secret", "data": { "old": HELD },
            "metadata": { "name": name, "resourceVersion": "3", "ownerReferences": owners },
        }),
    )
}

/// The machine `demo` has a Secret of its own for eve, one of others for adam, and one with passwords; `bare` has nothing.
fn answers(method: &str, path: &str) -> Answer {
    let path = path.split('?').next().unwrap_or_default();
    let words = json!({ "userPassword": {
        "source": { "secret": { "secretName": "words" } }, "propagationMethod": { "qemuGuestAgent": {} },
    } });
    match (method, path.rsplit('/').next().unwrap_or_default()) {
        ("GET" | "PATCH", "demo") if path.contains("/virtualmachines/") => {
            machine("demo", &json!([keys("own", "eve"), keys("shared", "adam"), words]))
        }
        ("GET" | "PATCH", "bare") if path.contains("/virtualmachines/") => machine("bare", &Value::Null),
        ("GET", "fixed") if path.contains("/virtualmachines/") => machine("fixed", &Value::Null),
        ("GET", "demo") if path.contains("/virtualmachineinstances/") => Answer::Object(
            200,
            json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": "demo" }, "spec": { "domain": { "devices": {} } } }),
        ),
        ("GET" | "PATCH", "own" | "words") => secret("own", Some("u")),
        ("GET" | "PATCH", "shared") => secret("shared", None),
        ("POST", "secrets") => secret("demo-ssh-key-x", Some("u")),
        _ => not_found(),
    }
}

async fn run(arguments: &[&str]) -> (String, Vec<(String, String, Value)>) {
    let server = Server::start(answers).await;
    let all: Vec<&str> = std::iter::once("credentials").chain(arguments.iter().copied()).collect();
    let output = said(&server.virtctl(&all).await);
    let asked = server.asked.lock().await.clone();
    (output, asked.into_iter().filter(|(method, ..)| method != "GET").collect())
}

#[tokio::test]
async fn a_key_goes_into_the_machines_own_secret() {
    let (output, changes) = run(&["add-ssh-key", "--user", "eve", "--value", KEY, "demo"]).await;
    assert_eq!(output, "exit 0\nSuccessfully added the key to secret \"own\"\n");
    let [(method, path, body)] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(method == "PATCH" && path.starts_with("/api/v1/namespaces/default/secrets/own"), "{method} {path}");
    let (name, value) = body["data"].as_object().unwrap().iter().next().unwrap();
    assert!(name.starts_with("ssh-key-"), "{name}");
    assert_eq!(value, "c3NoLWVkMjU1MTkgQUFBQUMzTnphIG1lQGhlcmU=");

    let (output, changes) = run(&["add-ssh-key", "-u", "eve", "--value", "ssh-rsa OLD", "demo"]).await;
    assert_eq!(output, "exit 0\nSecret \"own\" already contains this SSH key.\n");
    assert!(changes.is_empty());
}

#[tokio::test]
async fn a_secret_of_others_is_left_alone_unless_that_is_forced() {
    for verb in ["add-ssh-key", "remove-ssh-key"] {
        let (output, changes) = run(&[verb, "--user", "adam", "--value", "ssh-rsa NEW", "demo"]).await;
        assert!(
            output.contains("error: secret shared does not have an owner reference pointing to VM demo\nhint: "),
            "{output}"
        );
        assert!(changes.is_empty());
    }
    let (output, changes) = run(&["add-ssh-key", "--user", "adam", "--value", KEY, "--force", "demo"]).await;
    assert!(output.starts_with("exit 0") && changes.len() == 1, "{output}");
}

#[tokio::test]
async fn a_user_without_a_secret_gets_one_while_the_machine_is_stopped() {
    let (output, changes) = run(&["add-ssh-key", "--user", "root", "--value", KEY, "bare"]).await;
    assert_eq!(output, "exit 0\nSuccessfully added the key to secret \"demo-ssh-key-x\", which is new\n");
    let [(_, _, made), (_, _, assigned)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
    let first = &assigned["spec"]["template"]["spec"]["accessCredentials"][0];
    assert_eq!(*first, keys("demo-ssh-key-x", "root"));

    let (output, changes) = run(&["add-ssh-key", "--user", "root", "--value", KEY, "demo"]).await;
    assert!(output.contains("error: virtual machine demo is running. Use --force flag"), "{output}");
    assert!(changes.is_empty());
    let (output, changes) = run(&["add-ssh-key", "--user", "root", "--value", KEY, "--update-secret", "demo"]).await;
    assert!(output.contains("error: no secrets specified for user: root") && changes.is_empty(), "{output}");
}

#[tokio::test]
async fn a_secret_that_no_machine_names_does_not_stay() {
    // `fixed` is read and cannot be changed.
    let (output, changes) = run(&["add-ssh-key", "--user", "root", "--value", KEY, "--force", "fixed"]).await;
    assert!(output.starts_with("exit 1"), "{output}");
    let methods: Vec<&str> = changes.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "DELETE"]);
}

#[tokio::test]
async fn a_key_is_taken_out_again() {
    let (output, changes) = run(&["remove-ssh-key", "--user", "eve", "--value", "ssh-rsa OLD", "demo"]).await;
    assert_eq!(output, "exit 0\nSuccessfully removed the key from secret \"own\"\n");
    assert_eq!(changes[0].2, json!({ "metadata": { "resourceVersion": "3" }, "data": { "old": null } }));
    let (output, _) = run(&["remove-ssh-key", "--user", "nobody", "--value", KEY, "demo"]).await;
    assert_eq!(output, "exit 0\nNo secrets associated with user nobody\n");
    let (output, _) = run(&["remove-ssh-key", "--user", "eve", "--secret", "shared", "--value", KEY, "demo"]).await;
    assert!(output.contains("error: secret shared is not associated with user eve"), "{output}");
}

#[tokio::test]
async fn a_password_goes_under_the_name_of_its_user() {
    let (output, changes) = run(&["set-password", "--user", "eve", "--password", "word", "demo"]).await;
    assert_eq!(output, "exit 0\nSuccessfully set password in secret \"words\"\n");
    assert_eq!(changes[0].2, json!({ "data": { "eve": "d29yZA==" } }));
    let (output, _) = run(&["set-password", "--user", "eve", "--password", "word", "bare"]).await;
    assert!(output.contains("error: no secrets assigned to UserPassword AccessCredentials"), "{output}");
    let (output, _) = run(&["set-password", "--user", "-x:y", "--password", "word", "bare"]).await;
    assert!(output.starts_with("exit 2"), "{output}");
}

#[tokio::test]
async fn what_does_not_go_together_is_said_before_anything_is_asked() {
    let (output, _) = run(&["add-ssh-key", "--user", "eve", "demo"]).await;
    assert_eq!(output, "exit 2\n\nerror: one of --file, or --value must be specified");
    let both = ["add-ssh-key", "--user", "eve", "--value", KEY, "--create-secret", "--update-secret", "demo"];
    assert!(run(&both).await.0.starts_with("exit 2"));
    assert!(run(&["set-password", "--user", "eve", "demo"]).await.0.starts_with("exit 2"));
}
