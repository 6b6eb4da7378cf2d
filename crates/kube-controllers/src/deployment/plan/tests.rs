//! Plans of a rollout by data.

use serde_json::{Value, json};

use super::*;
use crate::deployment::status;

fn deployment(strategy: &str, replicas: i32, image: &str) -> Deployment {
    let strategy = match strategy {
        "recreate" => json!({"type": "Recreate"}),
        bounds => {
            let (surge, unavailable) = bounds.split_once('/').unwrap();
            let value = |text: &str| text.parse::<i32>().map_or_else(|_| json!(text), |n| json!(n));
            json!({"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": value(surge), "maxUnavailable": value(unavailable)}})
        }
    };
    serde_json::from_value(json!({"metadata": {"name": "d", "generation": 1,
            "annotations": {"deployment.kubernetes.io/revision": "1", "team": "a"}},
        "spec": {"replicas": replicas, "revisionHistoryLimit": 1, "strategy": strategy, "selector": {},
            "template": template(image)}}))
    .unwrap()
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

/// `image:size/available` with the revision counting up from 1.
fn sets(description: &str, desired: i32) -> Vec<Arc<ReplicaSet>> {
    let set = |(index, word): (usize, &str)| {
        let (image, numbers) = word.split_once(':').unwrap();
        let (size, available) = numbers.split_once('/').unwrap();
        let (size, available): (i32, i32) = (size.parse().unwrap(), available.parse().unwrap());
        let value = json!({"metadata": {"name": image, "creationTimestamp": format!("2026-01-01T00:00:0{index}Z"),
                "generation": 1, "annotations": {REVISION: (index + 1).to_string(), DESIRED: desired.to_string(),
                MAX: (desired + 1).to_string(), "team": "a"}},
            "spec": {"replicas": size, "selector": {}, "template": template(image)},
            "status": {"replicas": size, "availableReplicas": available, "observedGeneration": 1}});
        Arc::new(serde_json::from_value(value).unwrap())
    };
    description.split_whitespace().enumerate().map(set).collect()
}

fn text(steps: &[Step]) -> String {
    let line = |step: &Step| match step {
        Step::Create { replicas, annotations, .. } => format!("create {replicas} revision {}", annotations[REVISION]),
        Step::Scale { set, from, to, .. } => format!("{set} {from}->{to}"),
        Step::Annotate { set, annotations } => format!("annotate {set} {:?}", annotations.get(REVISION)),
        Step::Delete(set) => format!("delete {set}"),
        Step::Revision(revision) => format!("revision {revision}"),
    };
    steps.iter().map(line).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check(strategy: &str, replicas: i32, image: &str, description: &str, expect: &str) {
    let deployment = deployment(strategy, replicas, image);
    let sets = sets(description, replicas);
    let mut steps = steps(Observed { deployment: &deployment, sets: &sets, old_pods_exist: false });
    // Only the size annotations differ in most cases; they are checked in their own test.
    steps.retain(|step| !matches!(step, Step::Annotate { annotations, .. } if !annotations.contains_key(REVISION)));
    assert_eq!(text(&steps), expect);
}

#[test]
fn rolling() {
    check("1/0", 3, "new", "", "create 3 revision 1");
    check("1/0", 3, "new", "old:3/3", "create 1 revision 2, revision 2");
    check("1/0", 3, "new", "old:3/3 new:1/0", "revision 2");
    check("1/0", 3, "new", "old:3/3 new:1/1", "revision 2, old 3->2");
    check("1/0", 3, "new", "old:2/2 new:1/1", "new 1->2, revision 2");
    check("0/1", 3, "new", "old:3/3 new:0/0", "revision 2, old 3->2");
    check("0/0", 3, "new", "old:3/3 new:0/0", "revision 2, old 3->2");
    check("25%/25%", 4, "new", "old:4/4", "create 1 revision 2, revision 2");
    // Pods of the old set that are not available go first, even when nothing may be missing.
    check("1/0", 3, "new", "old:3/2 new:1/1", "revision 2, old 3->2");
}

#[test]
fn history_is_cut_when_the_rollout_is_complete() {
    check("1/0", 1, "new", "a:0/0 b:0/0 new:1/1", "revision 3, delete a");
    check("1/0", 1, "new", "a:0/0 b:0/0 new:1/0", "revision 3");
}

#[test]
fn going_back_gives_the_old_set_a_new_revision() {
    check("1/0", 1, "a", "a:0/0 b:1/1", "a 0->1, revision 3");
}

#[test]
fn recreate_waits_for_the_old_pods() {
    check("recreate", 2, "new", "old:2/2", "old 2->0");
    check("recreate", 2, "new", "old:0/0", "create 2 revision 2, revision 2");
    let (deployment, sets) = (deployment("recreate", 2, "new"), sets("old:0/0", 2));
    assert_eq!(steps(Observed { deployment: &deployment, sets: &sets, old_pods_exist: true }), []);
}

#[test]
fn resizing_keeps_proportions() {
    let mut deployment = deployment("1/1", 10, "new");
    let sets = sets("old:4/4 new:2/2", 5);
    let planned = steps(Observed { deployment: &deployment, sets: &sets, old_pods_exist: false });
    assert_eq!(text(&planned), "old 4->7, new 2->4");
    deployment.spec.as_mut().unwrap().paused = Some(true);
    let planned = steps(Observed { deployment: &deployment, sets: &sets, old_pods_exist: false });
    assert_eq!(text(&planned), "old 4->7, new 2->4");
}

#[test]
fn a_paused_rollout_that_fits_is_left_alone() {
    let mut deployment = deployment("1/0", 2, "new");
    deployment.spec.as_mut().unwrap().paused = Some(true);
    let check = |desired: i32, expect: &str| {
        let sets = sets("old:2/2 new:1/1", desired);
        let planned = steps(Observed { deployment: &deployment, sets: &sets, old_pods_exist: false });
        assert_eq!(text(&planned), expect);
    };
    check(2, "");
    check(3, "annotate old None, annotate new None");
}

#[test]
fn conditions_follow_the_rollout() {
    let now = |second: u32| serde_json::from_value(json!(format!("2026-01-01T00:10:{second:02}Z"))).unwrap();
    let mut deployment = deployment("1/0", 1, "new");
    let reasons = |status: &k8s_openapi::api::apps::v1::DeploymentStatus| {
        let conditions = status.conditions.as_ref().unwrap().iter();
        conditions
            .map(|c| format!("{}={}:{}", c.type_, c.status, c.reason.clone().unwrap()))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let (first, wake) = status::status(&deployment, &sets("new:1/0", 1), &now(0));
    assert_eq!(reasons(&first), "Available=False:MinimumReplicasUnavailable Progressing=True:NewReplicaSetCreated");
    assert_eq!(wake, Some(600));
    deployment.status = Some(first);
    deployment.spec.as_mut().unwrap().progress_deadline_seconds = Some(5);
    let (late, _) = status::status(&deployment, &sets("new:1/0", 1), &now(9));
    assert_eq!(reasons(&late), "Available=False:MinimumReplicasUnavailable Progressing=False:ProgressDeadlineExceeded");
    deployment.status = Some(late);
    let (done, wake) = status::status(&deployment, &sets("new:1/1", 1), &now(12));
    assert_eq!(reasons(&done), "Available=True:MinimumReplicasAvailable Progressing=True:NewReplicaSetAvailable");
    assert_eq!(wake, None);
    deployment.status = Some(done.clone());
    let (again, _) = status::status(&deployment, &sets("new:1/1", 1), &now(30));
    assert_eq!(again, done);
}
