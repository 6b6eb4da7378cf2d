//! What `tuning` sets, finds changed, and puts back.

use serde_json::{Value, json};

use crate::scene::{Container, Scene, after, network};

struct Made {
    scene: Scene,
    container: Container,
    result: Value,
}

impl Made {
    /// A container with an interface that `bridge` made.
    fn new() -> Self {
        let scene = Scene::new();
        let container = scene.container("c1");
        let result = scene.about("bridge", "ADD", &network(json!({})), &container).unwrap();
        Made { scene, container, result }
    }

    fn config(&self, more: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "red", "type": "tuning", "dataDir": self.scene.notes(), "prevResult": self.result,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    fn call(&self, verb: &str, config: &Value) -> Result<Value, Value> {
        self.scene.about("cnv-tuning", verb, config, &self.container)
    }

    fn setting(&self, path: &str) -> String {
        let file = format!("/proc/sys/{path}");
        sys::namespace::in_netns(std::os::fd::AsFd::as_fd(&self.container.netns), || {
            std::fs::read_to_string(file).unwrap()
        })
        .unwrap()
        .trim()
        .to_owned()
    }

    fn notes(&self) -> usize {
        std::fs::read_dir(self.scene.notes()).unwrap().count()
    }
}

#[test]
fn settings_are_made_checked_and_put_back() {
    let made = Made::new();
    let before = made.scene.inside(&made.container, async |inside| inside.get("net1").await.unwrap());
    let config = made.config(json!({
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/ip_local_port_range": "20000 30000" },
        "mac": "02:00:00:00:00:05", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
    }));
    let result = made.call("ADD", &config).unwrap();
    let inside = &result["interfaces"][2];
    assert_eq!((&inside["mac"], &inside["mtu"]), (&json!("02:00:00:00:00:05"), &json!(1400)));
    assert_eq!(result["interfaces"][0]["name"], "br1", "what others made stays in the result");
    assert_eq!(made.setting("net/ipv4/conf/net1/arp_filter"), "1");
    let shown =
        made.scene.says(&["nsenter", &format!("--net={}", made.container.path()), "ip", "link", "show", "net1"]);
    for word in ["PROMISC", "ALLMULTI", "mtu 1400", "qlen 77", "02:00:00:00:00:05"] {
        assert!(shown.contains(word), "{shown}");
    }
    let checked = after(&config, &result);
    made.call("CHECK", &checked).unwrap();
    made.scene.inside(&made.container, async |inside| inside.set_mtu("net1", 1300).await.unwrap());
    assert!(made.call("CHECK", &checked).unwrap_err()["msg"].as_str().unwrap().contains("mtu of net1"));
    assert_eq!(made.notes(), 1);
    for _ in 0..2 {
        made.call("DEL", &config).unwrap();
        let now = made.scene.inside(&made.container, async |inside| inside.get("net1").await.unwrap());
        assert_eq!((now.mac.clone(), now.mtu), (before.mac.clone(), before.mtu));
    }
    let shown =
        made.scene.says(&["nsenter", &format!("--net={}", made.container.path()), "ip", "link", "show", "net1"]);
    assert!(!shown.contains("PROMISC") && !shown.contains("qlen 77"), "{shown}");
    assert_eq!(made.notes(), 0);
}

/// ADD that is repeated after an interruption does not take its own work for what was before.
#[test]
fn what_was_before_is_noted_once() {
    let made = Made::new();
    let config = made.config(json!({ "mtu": 1400 }));
    made.call("ADD", &config).unwrap();
    made.call("ADD", &config).unwrap();
    made.call("DEL", &config).unwrap();
    assert_eq!(made.scene.inside(&made.container, async |inside| inside.get("net1").await.unwrap().mtu), 1500);
    made.call("ADD", &config).unwrap();
    let gone = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/run/netns/is-gone")];
    made.scene.call("tuning", "DEL", &config, &gone).unwrap();
    assert_eq!(made.notes(), 0);
}

#[test]
fn notes_of_what_is_not_in_use_are_collected_by_their_network() {
    let made = Made::new();
    made.call("ADD", &made.config(json!({ "mtu": 1400 }))).unwrap();
    let valid = |list: Value| made.config(json!({ "cni.dev/valid-attachments": list }));
    let mut other = valid(json!([]));
    other["name"] = json!("blue");
    made.call("GC", &other).unwrap();
    made.call("GC", &valid(json!([{ "containerID": "c1", "ifname": "net1" }]))).unwrap();
    assert_eq!(made.notes(), 1);
    made.call("GC", &valid(json!([]))).unwrap();
    assert_eq!(made.notes(), 0);
}

#[test]
fn it_changes_what_is_there_and_nothing_of_the_node() {
    let made = Made::new();
    let refused = |config: Value| made.call("ADD", &config).unwrap_err()["msg"].as_str().unwrap().to_owned();
    assert!(refused(made.config(json!({ "prevResult": null, "mtu": 1400 }))).contains("prevResult is null"));
    let node = made.scene.says(&["cat", "/proc/sys/net/ipv4/conf/all/arp_filter"]);
    let escape = made.config(json!({ "sysctl": { "net/../kernel/domainname": "stolen" } }));
    assert!(refused(escape).contains("only what is below net"));
    made.call("ADD", &made.config(json!({ "sysctl": { "net.ipv4.conf.all.arp_filter": "1" } }))).unwrap();
    assert_eq!(made.setting("net/ipv4/conf/all/arp_filter"), "1");
    assert_eq!(made.scene.says(&["cat", "/proc/sys/net/ipv4/conf/all/arp_filter"]), node);
    assert!(refused(made.config(json!({ "sysctl": { "net.ipv4.nothing": "1" } }))).contains("nothing"));
}
