//! ComponentStatus: how the parts of the control plane fare, as they say themselves. It is read and never stored.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::labels::Labels;
use kit::vital::State;

use super::respond::{self, Items};
use super::selector::Fields;
use super::{Call, not_allowed};
use crate::ApiServer;

/// The names that clients know the parts by; the store is known by that of another one.
const STORE: &str = "etcd-0";
const PARTS: [&str; 3] = ["controller-manager", STORE, "scheduler"];

pub(super) fn concerns(call: &Call) -> bool {
    call.resource.group.is_empty() && call.resource.plural == "componentstatuses"
}

pub(super) fn serve(call: &Call) -> Result<Response, ApiError> {
    match call.info.verb.as_str() {
        "get" => {
            let name = PARTS.iter().find(|part| **part == call.info.name);
            let name = name.ok_or_else(|| call.not_found(&call.info.name))?;
            respond::object(call, StatusCode::OK, &status(&call.server, name))
        }
        "list" => {
            let labels = Labels::parse(call.query.get("labelSelector"))?;
            Fields::parse(call.query.get("fieldSelector"), &call.resource)?;
            let wanted = &call.info.selected_name;
            let mut items = Items::new(call, call.accept.encoding)?;
            for name in PARTS {
                if (wanted.is_empty() || wanted == name) && labels.matches(|_| None) {
                    items.push(respond::shaped(call, status(&call.server, name)))?;
                }
            }
            respond::list(call, items, json!({}))
        }
        _ => Err(not_allowed()),
    }
}

fn status(server: &ApiServer, name: &str) -> Value {
    let (healthy, told) = match name {
        STORE if server.store().is_writable() => (true, "ok"),
        STORE => (false, "the last write could not be made durable"),
        part => match server.vitals().state(part) {
            State::Running => (true, "ok"),
            State::NotStarted => (false, "it does not run in the process of this API server"),
            State::Ended => (false, "it has ended, or a part of it has: the log of the control plane says why"),
        },
    };
    let condition = if healthy {
        json!({"type": "Healthy", "status": "True", "message": told})
    } else {
        json!({"type": "Healthy", "status": "False", "error": told})
    };
    json!({"apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": name}, "conditions": [condition]})
}
