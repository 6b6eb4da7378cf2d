//! Who may do what: `auth can-i`, impersonation, roles that deny and allow a service account with a kubeconfig.

use anyhow::{Result, ensure};
use e2e::Namespace;
use std::process::{Command, Output};

use crate::Test;
use crate::pods::text;

pub(crate) const TESTS: &[Test] = &[
    ("can_i_answers_for_anybody", can_i_answers_for_anybody),
    ("a_service_account_may_what_its_role_says", a_service_account_may_what_its_role_says),
    ("users_cannot_grant_rights_they_do_not_have", users_cannot_grant_rights_they_do_not_have),
];

fn can_i_answers_for_anybody() -> Result<()> {
    let space = Namespace::new("can-i")?;
    let check = |words: &[&str], expect: &str| -> Result<()> {
        let mut all = vec!["auth", "can-i"];
        all.extend(words);
        let output = space.output(&all)?;
        let answer = text(&output.stdout);
        ensure!(
            answer.trim_end() == expect && output.status.success() == (expect == "yes"),
            "can-i {words:?}: {output:?}"
        );
        Ok(())
    };
    check(&["create", "pods"], "yes")?;
    check(&["*", "*", "--all-namespaces"], "yes")?;
    check(&["create", "pods", "--as=bob"], "no")?;
    space.kubectl(&["create", "role", "reader", "--verb=get,list", "--resource=pods,pods/log"])?;
    space.kubectl(&["create", "rolebinding", "bob", "--role=reader", "--user=bob"])?;
    space.kubectl(&["create", "rolebinding", "team", "--clusterrole=view", "--group=team"])?;
    check(&["list", "pods", "--as=bob"], "yes")?;
    check(&["get", "pods", "--subresource=log", "--as=bob"], "yes")?;
    check(&["delete", "pods", "--as=bob"], "no")?;
    check(&["list", "pods", "--as=bob", "-n", "default"], "no")?;
    check(&["get", "configmaps", "--as=eve", "--as-group=team"], "yes")?;
    check(&["get", "secrets", "--as=eve", "--as-group=team"], "no")?;
    let list = space.kubectl(&["auth", "can-i", "--list", "--as=bob"])?;
    ensure!(list.contains("pods/log") && list.contains("[get list]"), "{list}");
    let who = space.kubectl(&["auth", "whoami", "--as=bob", "--as-group=team"])?;
    ensure!(who.contains("bob") && who.contains("team"), "{who}");
    Ok(())
}

/// kubectl with nothing but a service account's token.
fn as_account(space: &Namespace, token: &str, dir: &std::path::Path, words: &[&str]) -> Result<Output> {
    let path = dir.join("kubeconfig");
    let config = |words: &[&str]| -> Result<()> {
        let output = Command::new("kubectl").arg("--kubeconfig").arg(&path).arg("config").args(words).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(())
    };
    let authority = dir.join("ca.crt");
    std::fs::write(&authority, space.kubectl(&["get", "cm", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"])?)?;
    let authority = format!("--certificate-authority={}", authority.display());
    config(&["set-cluster", "c", "--server=https://10.88.0.1:6443", &authority])?;
    config(&["set-credentials", "u", &format!("--token={token}")])?;
    config(&["set-context", "x", "--cluster=c", "--user=u", &format!("--namespace={}", space.name())])?;
    config(&["use-context", "x"])?;
    Ok(Command::new("kubectl").arg("--kubeconfig").arg(&path).args(words).output()?)
}

fn a_service_account_may_what_its_role_says() -> Result<()> {
    let space = Namespace::new("rbac")?;
    let dir = tempfile::tempdir()?;
    space.kubectl(&["create", "serviceaccount", "robot"])?;
    let token = space.kubectl(&["create", "token", "robot", "--duration=20m"])?;
    let run = |words: &[&str]| as_account(&space, token.trim(), dir.path(), words);
    let denied = run(&["get", "pods"])?;
    let expect = format!(
        "pods is forbidden: User \"system:serviceaccount:{}:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"{}\"",
        space.name(),
        space.name()
    );
    ensure!(text(&denied.stderr).contains(&expect), "{denied:?}");
    space.kubectl(&[
        "create",
        "role",
        "maps",
        "--verb=get,list,create",
        "--resource=configmaps",
        "--resource-name=only",
    ])?;
    space.kubectl(&[
        "create",
        "rolebinding",
        "robot",
        "--role=maps",
        &format!("--serviceaccount={}:robot", space.name()),
    ])?;
    space.kubectl(&["create", "cm", "only"])?;
    space.kubectl(&["create", "cm", "other"])?;
    let named = run(&["get", "cm", "only", "-o", "name"])?;
    ensure!(named.stdout == b"configmap/only\n", "{named:?}");
    ensure!(!run(&["get", "cm", "other"])?.status.success(), "another object was read");
    let deleted = run(&["delete", "cm", "only"])?;
    ensure!(text(&deleted.stderr).contains("(Forbidden)"), "{deleted:?}");
    // A role that goes takes the right with it at once.
    space.kubectl(&["delete", "rolebinding", "robot"])?;
    ensure!(!run(&["get", "cm", "only"])?.status.success(), "the right outlived its binding");
    let wrong = as_account(&space, "not.a.token", dir.path(), &["get", "cm"])?;
    ensure!(text(&wrong.stderr).contains("You must be logged in to the server"), "{wrong:?}");
    // An account that goes takes its tokens with it.
    space.kubectl(&["delete", "serviceaccount", "robot"])?;
    let gone = run(&["get", "cm"])?;
    ensure!(text(&gone.stderr).contains("You must be logged in to the server"), "{gone:?}");
    Ok(())
}

fn users_cannot_grant_rights_they_do_not_have() -> Result<()> {
    let space = Namespace::new("escalate")?;
    space.kubectl(&[
        "create",
        "role",
        "granter",
        "--verb=create",
        "--resource=roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io",
    ])?;
    space.kubectl(&["create", "rolebinding", "granter", "--role=granter", "--user=bob"])?;
    let role = space.output(&["create", "role", "more", "--verb=get", "--resource=secrets", "--as=bob"])?;
    ensure!(text(&role.stderr).contains("is attempting to grant RBAC permissions not currently held"), "{role:?}");
    let binding = space.output(&["create", "rolebinding", "more", "--clusterrole=admin", "--user=bob", "--as=bob"])?;
    ensure!(
        text(&binding.stderr).contains("is attempting to grant RBAC permissions not currently held"),
        "{binding:?}"
    );
    Ok(())
}
