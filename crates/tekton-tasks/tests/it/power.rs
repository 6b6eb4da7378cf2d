//! virt-api and the machines' controller, as far as a step asks them: a start or stop is refused where virt-api refuses it, and else is
//! done at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kit::apply::{self, Applied};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// What was asked.
#[derive(Default)]
pub(crate) struct Power {
    asked: Mutex<Vec<String>>,
    /// Whether it can do nothing.
    pub(crate) is_down: AtomicBool,
}

const KUBEVIRT: &str = "/apis/kubevirt.io/v1";

impl Power {
    /// What was asked since.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    pub(crate) async fn answer(&self, admin: &Client, path: &str) -> http::Response<Body> {
        let (path, verb) = path.rsplit_once('/').unwrap();
        self.asked.lock().unwrap().push(verb.to_owned());
        let machine = path.replace("/apis/subresources.kubevirt.io/v1", KUBEVIRT);
        if self.is_down.load(Ordering::SeqCst) {
            return refused(500, "virt-api is down");
        }
        let found: Value = admin.request(http::Request::get(&machine).body(Vec::new()).unwrap()).await.unwrap();
        let instance = machine.replace("virtualmachines", "virtualmachineinstances");
        let guest: Option<Value> = admin.request(http::Request::get(&instance).body(Vec::new()).unwrap()).await.ok();
        let runs = guest.is_some_and(|guest| guest["status"]["phase"] == "Running");
        match (verb, found["spec"]["runStrategy"].as_str().unwrap_or("Halted")) {
            ("start", "Always" | "Once") => refused(409, "it does not support manual start requests"),
            ("start", _) if runs => refused(409, "VM is already running"),
            ("start", _) => {
                let (space, name) = (&found["metadata"]["namespace"], &found["metadata"]["name"]);
                let made = guest_at(name.as_str().unwrap(), space.as_str().unwrap(), "Running", "127.0.0.1");
                apply::all(admin, &Applied::by("test"), &[made]).await.unwrap();
                done()
            }
            ("stop", "Halted") => refused(409, "Halted only supports manual stop requests with a shorter graceperiod"),
            ("stop", "Manual") if !runs => refused(409, "VM is not running"),
            ("stop", _) => {
                let gone = admin.request::<Value>(http::Request::delete(&instance).body(Vec::new()).unwrap()).await;
                assert_eq!(gone.is_ok(), runs);
                done()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// An instance as its controller makes it.
pub(crate) fn guest_at(name: &str, namespace: &str, phase: &str, address: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": name, "namespace": namespace },
        "spec": { "domain": { "devices": {} } },
        "status": { "phase": phase, "interfaces": [{ "ipAddress": address }] },
    })
}

fn done() -> http::Response<Body> {
    http::Response::builder().status(202).body(Body::empty()).unwrap()
}

fn refused(code: u16, message: &str) -> http::Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code,
    });
    http::Response::builder().status(code).body(Body::from(status.to_string().into_bytes())).unwrap()
}
