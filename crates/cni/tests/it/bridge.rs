//! What `bridge` makes, finds changed, and takes back.

use net::link::Netlink;
use rtnetlink::LinkBridgePort;
use serde_json::{Value, json};

use crate::scene::{Container, Scene, addresses, after, network, script};

/// The node's end of the only port.
fn port(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

#[track_caller]
fn refused(outcome: Result<Value, Value>, words: &str) {
    let refusal = outcome.unwrap_err();
    let text = format!("{} {}", refusal["msg"].as_str().unwrap(), refusal["details"].as_str().unwrap());
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_port_without_addresses_is_made_and_taken_back() {
    let scene = Scene::new();
    let container = scene.container("c1");
    let config = network(json!({ "mtu": 1400, "runtimeConfig": { "mac": "02:00:00:00:00:07" } }));
    let result = scene.about("bridge", "ADD", &config, &container).unwrap();
    assert_eq!((&result["interfaces"][0]["name"], &result["ips"]), (&json!("br1"), &json!([])));
    let inside = &result["interfaces"][2];
    assert_eq!((&inside["name"], &inside["mac"]), (&json!("net1"), &json!("02:00:00:00:00:07")));
    assert_eq!(inside["sandbox"], json!(container.path()));
    let (name, bridge) = (port(&result), result["interfaces"][0]["mac"].clone());
    let link = scene.inside(&container, async |inside| inside.get("net1").await.unwrap());
    assert_eq!((link.mtu, link.up, link.mac), (1400, true, vec![2, 0, 0, 0, 0, 7]));
    let (port, held) = scene.with(async |node| (node.get(&name).await.unwrap(), node.get("br1").await.unwrap()));
    assert_eq!((port.controller, port.mtu, port.up), (Some(held.index), 1400, true));
    scene.about("bridge", "CHECK", &after(&config, &result), &container).unwrap();
    refused(scene.about("bridge", "ADD", &config, &container), "already has an interface net1");
    // The bridge keeps its address, whatever its ports have.
    let other = scene.container("c2");
    let second = network(json!({ "runtimeConfig": { "mac": "00:00:00:00:00:02" } }));
    let second = scene.about("bridge", "ADD", &second, &other).unwrap();
    assert_eq!(second["interfaces"][0]["mac"], bridge);
    for _ in 0..2 {
        scene.about("bridge", "DEL", &config, &container).unwrap();
        scene.about("bridge", "DEL", &network(json!({})), &other).unwrap();
    }
    assert_eq!(scene.links(), ["lo", "br1"]);
    assert!(scene.inside(&container, async |inside| inside.find("net1").await.unwrap()).is_none());
}

#[test]
fn a_network_with_addresses_has_a_gateway_and_is_masqueraded() {
    let scene = Scene::new();
    let container = scene.container("c1");
    let config = network(json!({
        "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, "cniVersion": "0.4.0",
        "ipam": addresses(&[("10.1.0.2/24", ""), ("fd00:1::2/64", "fd00:1::9")]),
    }));
    let result = scene.about("bridge", "ADD", &config, &container).unwrap();
    let ips = result["ips"].as_array().unwrap();
    assert_eq!(
        (&ips[0]["gateway"], &ips[0]["version"], &ips[0]["interface"]),
        (&json!("10.1.0.1"), &json!("4"), &json!(2))
    );
    assert_eq!(ips[1]["gateway"], "fd00:1::9");
    assert_eq!(
        result["routes"],
        json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }, { "dst": "::/0", "gw": "fd00:1::9" }])
    );
    let (held, routes) = scene.inside(&container, async |inside| {
        let link = inside.get("net1").await.unwrap();
        (inside.addresses(&link).await.unwrap(), inside.routes().await.unwrap())
    });
    for address in ["10.1.0.2/24", "fd00:1::2/64"] {
        assert!(held.contains(&address.parse().unwrap()), "{held:?}");
    }
    for (to, via) in [("0.0.0.0/0", "10.1.0.1"), ("::/0", "fd00:1::9")] {
        let (to, via) = (to.parse().unwrap(), via.parse().unwrap());
        assert!(routes.iter().any(|route| route.to == to && route.via == Some(via)), "{routes:?}");
    }
    let bridge = scene.with(async |node| node.addresses(&node.get("br1").await.unwrap()).await.unwrap());
    assert!(
        bridge.contains(&"10.1.0.1/24".parse().unwrap()) && bridge.contains(&"fd00:1::9/64".parse().unwrap()),
        "{bridge:?}"
    );
    assert_eq!(scene.says(&["cat", "/proc/sys/net/ipv4/ip_forward"]).trim(), "1");
    assert_eq!(scene.says(&["cat", "/proc/sys/net/ipv6/conf/all/forwarding"]).trim(), "1");
    let rules = scene.says(&["nft", "list", "ruleset"]);
    assert!(rules.contains("ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24"), "{rules}");
    scene.about("bridge", "CHECK", &after(&config, &result), &container).unwrap();
    // A network of other addresses does not get the bridge's by accident.
    let second = scene.container("c2");
    let other = |force: bool| {
        network(json!({
            "isGateway": true, "forceAddress": force, "ipam": addresses(&[("10.2.0.2/24", "")]),
        }))
    };
    refused(
        scene.about("bridge", "ADD", &other(false), &second),
        "br1 has the address 10.1.0.1/24, not 10.2.0.1/24: set forceAddress",
    );
    assert!(
        scene.inside(&second, async |inside| inside.find("net1").await.unwrap()).is_none(),
        "what was made is taken back"
    );
    scene.about("bridge", "ADD", &other(true), &second).unwrap();
    let bridge = scene.with(async |node| node.addresses(&node.get("br1").await.unwrap()).await.unwrap());
    assert!(
        bridge.contains(&"10.2.0.1/24".parse().unwrap()) && !bridge.contains(&"10.1.0.1/24".parse().unwrap()),
        "{bridge:?}"
    );
    scene.about("bridge", "DEL", &other(true), &second).unwrap();
    scene.about("bridge", "DEL", &after(&config, &result), &container).unwrap();
    assert_eq!(scene.links(), ["lo", "br1"]);
    assert!(scene.rules().is_empty(), "{:?}", scene.rules());
}

#[test]
fn an_ipv6_address_is_looked_for_at_others_when_asked() {
    let scene = Scene::new();
    let config = |address: &str| network(json!({ "enabledad": true, "ipam": addresses(&[(address, "")]) }));
    let (one, two) = (scene.container("c1"), scene.container("c2"));
    scene.about("bridge", "ADD", &config("fd00:1::2/64"), &one).unwrap();
    refused(scene.about("bridge", "ADD", &config("fd00:1::2/64"), &two), "that another host of the network has");
    scene.about("bridge", "ADD", &config("fd00:1::3/64"), &two).unwrap();
}

#[test]
fn an_interface_that_stays_down_is_a_port_all_the_same() {
    let scene = Scene::new();
    let container = scene.container("c1");
    let config = network(json!({ "disableContainerInterface": true, "promiscMode": true }));
    let result = scene.about("bridge", "ADD", &config, &container).unwrap();
    assert!(!scene.inside(&container, async |inside| inside.get("net1").await.unwrap().up));
    assert!(scene.says(&["ip", "link", "show", "br1"]).contains("PROMISC"));
    scene.about("bridge", "CHECK", &after(&config, &result), &container).unwrap();
    scene.inside(&container, async |inside| inside.set_up("net1").await.unwrap());
    refused(scene.about("bridge", "CHECK", &after(&config, &result), &container), "net1 is up");
}

/// Either the bridge tells VLANs apart, or the answer is why it cannot.
#[test]
fn vlans_act_or_are_refused_before_anything_is_made() {
    let scene = Scene::new();
    let container = scene.container("c1");
    let config =
        network(json!({ "vlan": 100, "vlanTrunk": [{ "minID": 200, "maxID": 201 }], "preserveDefaultVlan": false }));
    let can = scene.run(|| {
        let words = ["link", "add", "probe", "type", "bridge", "vlan_filtering", "1"];
        std::process::Command::new("ip").args(words).status().unwrap().success()
    });
    if !can {
        refused(
            scene.about("bridge", "ADD", &config, &container),
            "the kernel of this node cannot filter VLANs at bridges (it is built without CONFIG_BRIDGE_VLAN_FILTERING)",
        );
        assert_eq!(scene.links(), ["lo"]);
        // A bridge that is there is of the same kernel.
        scene.with(async |node| drop(node.ensure_bridge("br1").await.unwrap()));
        refused(scene.about("bridge", "ADD", &config, &container), "vlan and vlanTrunk have to be left out");
        return;
    }
    let result = scene.about("bridge", "ADD", &config, &container).unwrap();
    let vlans = scene.says(&["bridge", "vlan", "show", "dev", &port(&result)]);
    assert!(vlans.contains("100 PVID Egress Untagged") && vlans.contains("200") && vlans.contains("201"), "{vlans}");
    scene.about("bridge", "CHECK", &after(&config, &result), &container).unwrap();
    scene.says(&["bridge", "vlan", "del", "vid", "201", "dev", &port(&result)]);
    refused(scene.about("bridge", "CHECK", &after(&config, &result), &container), "not in VLAN 201");
    // A bridge that does not tell them apart is not changed for it.
    scene.with(async |node| drop(node.ensure_bridge("br2").await.unwrap()));
    let other = scene.container("c2");
    refused(
        scene.about("bridge", "ADD", &network(json!({ "bridge": "br2", "vlan": 5 })), &other),
        "does not filter VLANs",
    );
}

#[test]
fn another_interface_of_the_bridges_name_is_left_alone() {
    let scene = Scene::new();
    let container = scene.container("c1");
    scene.says(&["ip", "link", "add", "br1", "type", "veth", "peer", "name", "peer"]);
    refused(scene.about("bridge", "ADD", &network(json!({})), &container), "which is no bridge");
    assert_eq!(scene.links().len(), 3);
}

/// A change of one thing at a time, and the words that name it.
#[test]
fn check_finds_what_was_changed() {
    let check = |more: Value, change: &dyn Fn(&Scene, &Container, &str), words: &str| {
        let scene = Scene::new();
        let container = scene.container("c1");
        let config = network(more);
        let result = scene.about("bridge", "ADD", &config, &container).unwrap();
        scene.about("bridge", "CHECK", &after(&config, &result), &container).unwrap();
        change(&scene, &container, &port(&result));
        refused(scene.about("bridge", "CHECK", &after(&config, &result), &container), words);
    };
    let of_port = |scene: &Scene, name: &str, hairpin: bool, isolated: bool| {
        scene.with(async |node: Netlink| {
            let index = node.get(name).await.unwrap().index;
            let message = LinkBridgePort::new(index).hairpin(hairpin).isolated(isolated).build();
            node.handle().link().set_port(message).execute().await.unwrap();
        });
    };
    let routed = || json!({ "isDefaultGateway": true, "ipam": addresses(&[("10.1.0.2/24", "")]) });
    check(json!({ "hairpinMode": true }), &|scene, _, name| of_port(scene, name, false, false), "hairpinMode");
    check(json!({ "portIsolation": true }), &|scene, _, name| of_port(scene, name, false, false), "portIsolation");
    check(json!({}), &|scene, _, name| of_port(scene, name, false, true), "portIsolation");
    check(json!({}), &|scene, _, name| drop(scene.says(&["ip", "link", "set", name, "nomaster"])), "no port of br1");
    check(json!({}), &|scene, _, name| drop(scene.says(&["ip", "link", "del", name])), "the node's end, is gone");
    check(json!({}), &|scene, _, _| drop(scene.says(&["ip", "link", "del", "br1"])), "the bridge br1 is gone");
    check(json!({ "macspoofchk": true }), &|scene, _, _| drop(scene.says(&["nft", "flush", "ruleset"])), "macspoofchk");
    let masqueraded = json!({ "ipMasq": true, "ipam": addresses(&[("10.1.0.2/24", "")]) });
    check(masqueraded, &|scene, _, _| drop(scene.says(&["nft", "flush", "ruleset"])), "ipMasq");
    check(
        json!({ "mtu": 1400 }),
        &|scene, container, _| {
            scene.inside(container, async |inside| inside.set_mtu("net1", 1300).await.unwrap());
        },
        "MTU of net1 is 1300",
    );
    check(
        json!({}),
        &|scene, container, _| {
            scene.inside(container, async |inside| inside.set_mac("net1", [2, 0, 0, 0, 0, 9]).await.unwrap());
        },
        "hardware address 02:00:00:00:00:09",
    );
    check(
        json!({}),
        &|scene, container, _| {
            scene.inside(container, async |inside| inside.set_down("net1").await.unwrap());
        },
        "net1 is down",
    );
    check(
        routed(),
        &|scene, container, _| {
            scene.inside(container, async |inside| {
                inside.remove_address("net1", "10.1.0.2/24".parse().unwrap()).await.unwrap();
            });
        },
        "the address 10.1.0.2/24",
    );
    check(
        routed(),
        &|scene, container, _| {
            scene.inside(container, async |inside| {
                let route = net::link::Route {
                    to: "0.0.0.0/0".parse().unwrap(),
                    via: Some("10.1.0.1".parse().unwrap()),
                    link: None,
                };
                inside.remove_route(&route).await.unwrap();
            });
        },
        "the route to 0.0.0.0/0",
    );
}

/// The runtime was interrupted after any step, and says DEL without knowing what was made.
#[test]
fn del_takes_back_what_an_interrupted_add_has_left() {
    let scene = Scene::new();
    let config = network(json!({
        "macspoofchk": true, "ipMasq": true, "isGateway": true, "ipam": { "type": "stalls" },
    }));
    // The plugin for addresses ends the one that called it, as a power cut would: everything before it is made.
    let (dir, _) = script("stalls", r#"[ "$CNI_COMMAND" = ADD ] && kill -9 $PPID; cat >/dev/null; exit 0"#);
    let container = scene.container("c1");
    let (path, dirs) = (container.path(), dir.path().display().to_string());
    let variables = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", path.as_str()), ("CNI_PATH", dirs.as_str())];
    assert_eq!(scene.call("bridge", "ADD", &config, &variables), Err(Value::Null));
    assert_eq!(scene.links().len(), 3);
    assert!(!scene.rules().is_empty());
    scene.call("bridge", "DEL", &config, &variables).unwrap();
    assert_eq!(scene.links(), ["lo", "br1"]);
    assert!(scene.rules().is_empty(), "{:?}", scene.rules());
    assert!(scene.inside(&container, async |inside| inside.find("net1").await.unwrap()).is_none());
    // And once more, with the namespace gone.
    assert_eq!(scene.call("bridge", "ADD", &config, &variables), Err(Value::Null));
    let gone = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/run/netns/is-gone"), ("CNI_PATH", dirs.as_str())];
    scene.call("bridge", "DEL", &config, &gone).unwrap();
    scene.call("bridge", "DEL", &config, &[("CNI_CONTAINERID", "c1"), ("CNI_NETNS", ""), ("CNI_PATH", &dirs)]).unwrap();
    assert_eq!((scene.links(), scene.rules()), (vec!["lo".to_owned(), "br1".to_owned()], Vec::new()));
}

#[test]
fn a_failure_of_the_plugin_for_addresses_is_its_own_and_leaves_nothing() {
    let scene = Scene::new();
    let container = scene.container("c1");
    let no = r#"cat >/dev/null; [ "$CNI_COMMAND" = DEL ] && exit 0; echo '{"code": 11, "msg": "full", "details": "try later"}'; exit 1"#;
    let (dir, _) = script("full", no);
    let (path, dirs) = (container.path(), dir.path().display().to_string());
    let variables = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", path.as_str()), ("CNI_PATH", dirs.as_str())];
    let config = network(json!({ "macspoofchk": true, "ipam": { "type": "full" } }));
    let refusal = scene.call("bridge", "ADD", &config, &variables).unwrap_err();
    assert_eq!((&refusal["code"], &refusal["details"]), (&json!(11), &json!("try later")));
    assert_eq!((scene.links(), scene.rules()), (vec!["lo".to_owned(), "br1".to_owned()], Vec::new()));
    let path_of = network(json!({ "ipam": { "type": "../full" } }));
    refused(scene.call("bridge", "ADD", &path_of, &variables), "name a plugin, not a path");
    let unknown = network(json!({ "ipam": { "type": "nothing" } }));
    refused(scene.call("bridge", "ADD", &unknown, &variables), "failed to find plugin \"nothing\"");
}

#[test]
fn gc_takes_back_what_the_runtime_has_forgotten_of_this_network_alone() {
    let scene = Scene::new();
    let all = [scene.container("c1"), scene.container("c2"), scene.container("c3")];
    let config = network(json!({ "cniVersion": "1.1.0", "macspoofchk": true }));
    for container in &all[..2] {
        scene.about("bridge", "ADD", &config, container).unwrap();
    }
    let mut blue = config.clone();
    blue["name"] = json!("blue");
    scene.about("bridge", "ADD", &blue, &all[2]).unwrap();
    let mut valid = config.clone();
    valid["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "net1" }]);
    scene.about("bridge", "GC", &valid, &all[0]).unwrap();
    assert_eq!(scene.links().len(), 4);
    assert!(scene.inside(&all[0], async |inside| inside.find("net1").await.unwrap()).is_none());
    assert!(scene.inside(&all[1], async |inside| inside.find("net1").await.unwrap()).is_some());
    assert_eq!(scene.rules().iter().filter(|line| line.starts_with("chain ")).count(), 2);
    refused(scene.about("bridge", "GC", &config, &all[0]), "cni.dev/valid-attachments is null");
}

#[test]
fn a_bridge_that_is_there_is_used_as_it_is() {
    let scene = Scene::new();
    let container = scene.container("c1");
    scene.says(&["ip", "link", "add", "br1", "type", "bridge"]);
    scene.says(&["ip", "link", "set", "br1", "mtu", "1450"]);
    scene.about("bridge", "ADD", &network(json!({})), &container).unwrap();
    assert_eq!(scene.with(async |node| node.bridges().await.unwrap()), ["br1"]);
    assert_eq!(scene.with(async |node| node.get("br1").await.unwrap().mtu), 1450);
    scene.about("bridge", "DEL", &network(json!({})), &container).unwrap();
    assert_eq!(scene.links(), ["lo", "br1"]);
}
