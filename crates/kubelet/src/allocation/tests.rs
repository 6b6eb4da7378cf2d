//! Who gets what there is, by data.

use serde_json::json;

use super::*;

const NODE: NodeAmounts = NodeAmounts { cpu_milli: 4500, memory: 1 << 30, storage: 0 };

struct Node {
    dir: tempfile::TempDir,
    allocations: Allocations,
}

fn pod(name: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let pod = json!({"metadata": {"name": name, "uid": name, "generation": 2},
        "spec": {"priority": priority, "containers": [container]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl Node {
    fn new(pods: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { allocations: Allocations::new(dir.path().into(), &NODE), dir };
        pods.iter().for_each(|(name, cpu)| node.allocations.admit(&pod(name, cpu, 0)));
        node.allocations.settle();
        node
    }

    /// `Granted`, `Deferred` or `Infeasible`.
    fn ask(&self, pod: &Arc<Pod>) -> String {
        match self.allocations.grant(pod).unwrap() {
            Verdict::Granted => "Granted".into(),
            Verdict::Refused(refusal) => refusal.reason.into(),
            Verdict::Unknown => "Unknown".into(),
        }
    }

    fn given(&self, name: &str) -> String {
        self.allocations.record(name).allocated["c"].requests.as_ref().unwrap()["cpu"].0.clone()
    }
}

#[test]
fn a_pod_grows_into_what_others_leave() {
    let node = Node::new(&[("a", "1"), ("b", "2")]);
    assert_eq!(node.ask(&pod("a", "5", 0)), "Infeasible");
    assert_eq!(node.ask(&pod("a", "3", 0)), "Deferred");
    assert_eq!(node.given("a"), "1");
    assert_eq!(node.ask(&pod("a", "2", 0)), "Granted");
    assert_eq!((node.given("a"), node.ask(&pod("b", "3", 0))), ("2".into(), "Deferred".into()));
    node.allocations.over("a");
    assert_eq!(node.ask(&pod("b", "3", 0)), "Granted");
}

#[test]
fn what_a_container_has_not_given_back_is_not_given_away() {
    let node = Node::new(&[("a", "3"), ("b", "1")]);
    let size = |cpu: &str| sizes(&pod("", cpu, 0))["c"].clone();
    node.allocations.applied("a", "c", &size("3")).unwrap();
    assert_eq!(node.ask(&pod("a", "1", 0)), "Granted");
    assert_eq!(node.ask(&pod("b", "2", 0)), "Deferred");
    let mut changes = node.allocations.changes();
    node.allocations.applied("a", "c", &size("1")).unwrap();
    assert!(changes.has_changed().unwrap(), "who waits is told");
    changes.mark_unchanged();
    assert_eq!(node.ask(&pod("b", "2", 0)), "Granted");
}

#[test]
fn of_pods_that_wait_the_more_important_comes_first() {
    let node = Node::new(&[("a", "1"), ("b", "1"), ("c", "2")]);
    assert_eq!(node.ask(&pod("a", "3", 0)), "Deferred");
    assert_eq!(node.ask(&pod("b", "3", 10)), "Deferred");
    node.allocations.forget("c");
    assert_eq!(node.ask(&pod("a", "3", 0)), "Deferred", "what there is, is kept for the other");
    assert_eq!(node.ask(&pod("b", "3", 10)), "Granted");
    // Among equals, who asked first.
    let node = Node::new(&[("a", "1"), ("b", "1"), ("c", "2")]);
    assert_eq!((node.ask(&pod("a", "3", 0)), node.ask(&pod("b", "3", 0))), ("Deferred".into(), "Deferred".into()));
    node.allocations.forget("c");
    assert_eq!((node.ask(&pod("b", "3", 0)), node.ask(&pod("a", "3", 0))), ("Deferred".into(), "Granted".into()));
    // Who wants nothing any more is in nobody's way.
    let node = Node::new(&[("a", "1"), ("b", "1"), ("c", "2")]);
    node.ask(&pod("a", "3", 0));
    node.allocations.withdraw("a");
    node.allocations.forget("c");
    assert_eq!(node.ask(&pod("b", "3", 0)), "Granted");
}

#[test]
fn what_was_granted_is_known_in_the_next_life() {
    let node = Node::new(&[("a", "1")]);
    assert_eq!(node.ask(&pod("a", "2", 0)), "Granted");
    let next = Allocations::new(node.dir.path().into(), &NODE);
    next.admit(&pod("a", "3", 0));
    assert_eq!(next.grant(&pod("a", "3", 0)).unwrap(), Verdict::Unknown, "others may be seen yet");
    assert_eq!(next.record("a"), node.allocations.record("a"));
    assert_eq!(next.record("a").under_way, Some(2));
    next.finished("a").unwrap();
    assert_eq!(next.record("a").under_way, None);
}

#[test]
fn what_cannot_be_written_down_is_not_granted() {
    let node = Node::new(&[("a", "1")]);
    std::fs::remove_dir_all(node.dir.path()).unwrap();
    std::fs::write(node.dir.path(), "").unwrap();
    assert!(node.allocations.grant(&pod("a", "2", 0)).is_err());
    assert_eq!(node.given("a"), "1");
    std::fs::remove_file(node.dir.path()).unwrap();
}
