//! What `macvtap` moves, and what it never does.

use serde_json::{Value, json};

use crate::scene::{Scene, after};

fn config(more: Value) -> Value {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "red", "type": "macvtap" });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// A node with a link that machines may use, and a device made of it.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.says(&["ip", "link", "add", "eth7", "type", "veth", "peer", "name", "wire"]);
    scene.says(&["ip", "link", "add", "link", "eth7", "name", "dpMvp0", "type", "macvtap", "mode", "bridge"]);
    scene
}

fn refusal(outcome: Result<Value, Value>) -> String {
    outcome.unwrap_err()["msg"].as_str().unwrap().to_owned()
}

#[test]
fn a_device_becomes_the_containers_interface() {
    let scene = scene();
    let container = scene.container("c1");
    let asked = config(json!({ "deviceID": "dpMvp0", "mac": "02:00:00:00:00:07", "mtu": 1400, "promiscMode": true }));
    let result = scene.about("macvtap", "ADD", &asked, &container).unwrap();
    let made = &result["interfaces"][0];
    assert_eq!((&made["name"], &made["mac"]), (&json!("net1"), &json!("02:00:00:00:00:07")));
    let link = scene.inside(&container, async |inside| inside.get("net1").await.unwrap());
    assert_eq!((link.mtu, link.up), (1400, true));
    assert!(!scene.links().contains(&"dpMvp0".to_owned()));
    scene.about("macvtap", "CHECK", &after(&asked, &result), &container).unwrap();
    scene.inside(&container, async |inside| inside.set_down("net1").await.unwrap());
    assert!(refusal(scene.about("macvtap", "CHECK", &after(&asked, &result), &container)).contains("net1 is down"));
    for _ in 0..2 {
        scene.about("macvtap", "DEL", &asked, &container).unwrap();
    }
    assert!(scene.inside(&container, async |inside| inside.find("net1").await.unwrap()).is_none());
    scene.call("macvtap", "DEL", &asked, &[("CNI_NETNS", "/run/netns/is-gone")]).unwrap();
}

/// Whoever writes the definition of a network could name any link of the node.
#[test]
fn a_link_of_the_node_itself_is_never_moved_or_deleted() {
    let scene = scene();
    let container = scene.container("c1");
    let add = |more: Value| refusal(scene.about("macvtap", "ADD", &config(more), &container));
    assert!(
        add(json!({ "deviceID": "eth7" })).contains("deviceID is \"eth7\": this interface of the node is no macvtap")
    );
    assert!(add(json!({})).contains("deviceID is null: name the resource"));
    assert!(add(json!({ "deviceID": "dpMvp9" })).contains("the node has no link dpMvp9"));
    assert!(add(json!({ "deviceID": "dpMvp0", "ipam": { "type": "static" } })).contains("ipam is "));
    assert!(add(json!({ "deviceID": "../eth7" })).contains("deviceID is \"../eth7\""));
    assert_eq!(scene.links().iter().filter(|name| ["eth7", "dpMvp0"].contains(&name.as_str())).count(), 2);
    // What is called as the interface and was made by another plugin is that one's.
    scene.inside(&container, async |inside| drop(inside.ensure_bridge("net1").await.unwrap()));
    scene.about("macvtap", "DEL", &config(json!({ "deviceID": "dpMvp0" })), &container).unwrap();
    assert!(scene.inside(&container, async |inside| inside.has("net1").await.unwrap()));
}
