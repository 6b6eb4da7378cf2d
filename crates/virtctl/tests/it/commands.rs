//! What is said and with which exit code.

use insta::assert_snapshot;

use crate::cluster::{program, said};

fn run(arguments: &[&str]) -> String {
    said(&program(arguments).output().unwrap())
}

#[test]
fn no_cluster() {
    assert_snapshot!(run(&["start", "demo"]), @r"
    exit 1

    error: no cluster to talk to: there is neither --kubeconfig nor $KUBECONFIG nor ~/.kube/config
    hint: `ferrovirt up` starts a cluster on this machine, and its kubeconfig is then found
    ");
}

#[test]
fn a_kubeconfig_that_is_not_there() {
    assert_snapshot!(run(&["stop", "demo", "--kubeconfig=/nonexistent"]), @r#"
    exit 1

    error: cannot read kubeconfig /nonexistent: failed to read kubeconfig from '"/nonexistent"': No such file or directory (os error 2)
    "#);
}

#[test]
fn mistakes_exit_with_2() {
    assert_snapshot!(run(&["stop", "demo", "--grace-period=3"]), @r"
    exit 2

    error: --grace-period works only together with --force
    ");
    assert_snapshot!(run(&["ssh", "pod/demo"]), @r#"
    exit 2

    error: "pod/demo" names no machine: "pod" is neither vm nor vmi
    hint: write vm/NAME or vmi/NAME, and /NAMESPACE behind it if it is another one
    "#);
    assert_snapshot!(run(&["migrate", "demo", "--addedNodeSelector=node2"]), @r#"
    exit 2

    error: --addedNodeSelector: "node2" is not a label
    hint: write KEY=VALUE, for example kubernetes.io/hostname=node2
    "#);
    assert_snapshot!(run(&["evacuate-cancel", "pod", "demo"]), @r#"
    exit 2

    error: "pod" is neither vm nor vmi nor node
    "#);
    assert_snapshot!(run(&["launch"]), @r"
    exit 2

    error: unrecognized subcommand 'launch'

    Usage: virtctl [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
    assert_snapshot!(run(&["port-forward", "vm/demo", "http"]), @r#"
    exit 2

    error: "http" names no port: "http" is not a port number
    hint: write LOCAL[:TARGET], and udp/ before it for UDP
    "#);
}

#[test]
fn a_cluster_that_does_not_answer() {
    assert_snapshot!(run(&["pause", "vm", "demo", "--server=http://127.0.0.1:1"]), @r"
    exit 1

    error: cannot pause VMI default/demo: ServiceError: client error (Connect): tcp connect error: Connection refused (os error 111)
    hint: nothing listens at the cluster's address: start the cluster with `ferrovirt up`, or choose another with --context
    ");
}

#[test]
fn the_version_of_the_client_needs_no_cluster() {
    let text = run(&["version", "--client"]);
    assert!(text.starts_with("exit 0\nClient Version: version.Info{GitVersion:\"v"), "{text}");
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let text = run(&["completion", shell]);
        assert!(text.starts_with("exit 0\n") && text.contains("port-forward"), "{shell}");
    }
}
