//! Logs: follow, tail, since, previous, one container, all containers, by label, from before the end of a pod.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::Namespace;
use serde_json::json;

use crate::Test;
use crate::pods::{apply, container, pod, ready, special, text, with};

pub(crate) const TESTS: &[Test] = &[
    ("logs_are_cut_as_asked", logs_are_cut_as_asked),
    ("logs_follow_until_the_end", logs_follow_until_the_end),
    ("logs_of_the_previous_container", logs_of_the_previous_container),
    ("logs_of_several_containers_and_pods", logs_of_several_containers_and_pods),
];

fn logs_are_cut_as_asked() -> Result<()> {
    let space = Namespace::new("logs")?;
    let script = "for n in 1 2 3 4 5; do echo line $n; done; echo error; trap 'exit 0' TERM; sleep 100000 & wait";
    apply(&space, &[pod("p", script)])?;
    ready(&space, "p")?;
    e2e::until("the container wrote", || Ok(space.kubectl(&["logs", "p"])?.contains("error").then_some(())))?;
    let check = |words: &[&str], expect: &str| -> Result<()> {
        let printed = space.kubectl(words)?;
        ensure!(printed == expect, "kubectl {}: {printed:?}", words.join(" "));
        Ok(())
    };
    check(&["logs", "p"], "line 1\nline 2\nline 3\nline 4\nline 5\nerror\n")?;
    check(&["logs", "p", "--tail=2"], "line 5\nerror\n")?;
    check(&["logs", "p", "--tail=0"], "")?;
    check(&["logs", "p", "--limit-bytes=7"], "line 1\n")?;
    check(&["logs", "pod/p", "-c", "main", "--since=1h", "--tail=1"], "error\n")?;
    check(&["logs", "p", "--since-time=2100-01-01T00:00:00Z"], "")?;
    let stamped = space.kubectl(&["logs", "p", "--timestamps", "--tail=1"])?;
    let (stamp, words) = stamped.split_once(' ').context("no timestamp")?;
    ensure!(stamp.ends_with('Z') && stamp.contains('T') && words == "error\n", "{stamped}");
    let wrong = space.output(&["logs", "p", "-c", "other"])?;
    ensure!(text(&wrong.stderr).contains("container other is not valid for pod p"), "{wrong:?}");
    let none = space.output(&["logs", "p", "--previous"])?;
    ensure!(text(&none.stderr).contains("previous terminated container \"main\" in pod \"p\" not found"), "{none:?}");
    Ok(())
}

fn logs_follow_until_the_end() -> Result<()> {
    let space = Namespace::new("follow")?;
    apply(
        &space,
        &[with(
            pod("p", "echo ready; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo last"),
            &json!({"spec": {"restartPolicy": "Never"}}),
        )],
    )?;
    ready(&space, "p")?;
    let mut follow = space.command("kubectl").args(["logs", "-f", "p"]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(follow.stdout.take().context("no pipe")?).lines();
    ensure!(lines.next().transpose()?.as_deref() == Some("ready"), "the log does not begin with its first line");
    crate::pods::sh(&space, "p", "busybox touch /tmp/go")?;
    ensure!(lines.next().transpose()?.as_deref() == Some("last"), "the log was not followed");
    ensure!(lines.next().is_none() && follow.wait()?.success(), "following did not end with the container");
    Ok(())
}

fn logs_of_the_previous_container() -> Result<()> {
    let space = Namespace::new("previous")?;
    let script = "if [ -e /keep/once ]; then echo second; trap 'exit 0' TERM; sleep 100000 & wait; else echo first; busybox touch /keep/once; exit 3; fi";
    let main = json!({"volumeMounts": [{"name": "keep", "mountPath": "/keep"}]});
    apply(&space, &[special("p", script, &main, &json!({"volumes": [{"name": "keep", "emptyDir": {}}]}))])?;
    space.wait("pod", "p", "was restarted", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    ensure!(space.kubectl(&["logs", "p", "--previous"])? == "first\n", "the previous log");
    e2e::until("the second container wrote", || Ok((space.kubectl(&["logs", "p"])? == "second\n").then_some(())))?;
    let last = space.get("pod", "p")?["status"]["containerStatuses"][0]["lastState"]["terminated"].clone();
    ensure!(last["exitCode"] == 3 && last["reason"] == "Error", "{last}");
    Ok(())
}

fn logs_of_several_containers_and_pods() -> Result<()> {
    let space = Namespace::new("several")?;
    let two = |name: &str| {
        let containers = json!([container("a", &format!("echo {name}-a")), container("b", &format!("echo {name}-b"))]);
        with(
            pod(name, ""),
            &json!({"metadata": {"labels": {"set": "x"}}, "spec": {"restartPolicy": "Never", "containers": containers}}),
        )
    };
    apply(&space, &[two("one"), two("two")])?;
    for name in ["one", "two"] {
        space.wait("pod", name, "ended", |pod| pod["status"]["phase"] == "Succeeded")?;
    }
    let all = space.kubectl(&["logs", "one", "--all-containers"])?;
    let mut lines: Vec<_> = all.lines().collect();
    lines.sort_unstable();
    ensure!(lines == ["one-a", "one-b"], "{all}");
    let labelled = space.kubectl(&["logs", "-l", "set=x", "--all-containers", "--prefix"])?;
    for words in ["[pod/one/a] one-a", "[pod/one/b] one-b", "[pod/two/a] two-a", "[pod/two/b] two-b"] {
        ensure!(labelled.contains(words), "{labelled}");
    }
    Ok(())
}
