//! What the status of a claim may say: devices for its requests, which stay what they are, and who uses them.

use std::collections::HashSet;

use apimachinery::schema::validate::cause;
use serde_json::Value;

use super::{FIXED, MANY, PARAMETERS, at_most, configurations, driver, pool, short};
use crate::strategy::field::{Causes, Field, LABEL, Rule};

/// Users of a claim at most.
const CONSUMERS: usize = 256;
/// Configurations of an allocation at most: the class's and the claim's.
const CONFIGURATIONS: usize = 64;

/// Checks the status of a claim against its spec and against what it was.
pub(super) fn validate(claim: &Field<'_>, old: &Value, causes: &mut Causes) {
    let status = claim.get("status");
    let allocation = status.get("allocation");
    let before = &old["status"]["allocation"];
    if !before.is_null() && allocation.is_set() && before != allocation.value {
        allocation.invalid(FIXED, causes);
    } else if before.is_null() && allocation.is_set() {
        self::allocation(&allocation, claim, causes);
    }
    reserved(&status, old, causes);
    reports(&status, causes);
}

fn allocation(allocation: &Field<'_>, claim: &Field<'_>, causes: &mut Causes) {
    let devices = allocation.get("devices");
    let mut requests = HashSet::new();
    for request in claim.get("spec").get("devices").each("requests") {
        let main = request.get("name").text();
        if request.get("exactly").is_set() {
            requests.insert(main.to_owned());
        }
        requests.extend(request.each("firstAvailable").map(|sub| format!("{main}/{}", sub.get("name").text())));
    }
    at_most(&devices.get("results"), MANY, causes);
    for result in devices.each("results").take(MANY) {
        let request = result.get("request");
        if !requests.contains(request.text()) {
            let why =
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            request.invalid(why, causes);
        }
        driver(&result.get("driver"), causes);
        pool(&result.get("pool"), causes);
        result.get("device").check(&Rule::Needed, causes);
        result.get("device").check(&LABEL, causes);
        super::claim::tolerations(&result, causes);
    }
    at_most(&devices.get("config"), CONFIGURATIONS, causes);
    for config in devices.each("config").take(CONFIGURATIONS) {
        config.get("source").check(&Rule::Exactly(&["FromClaim", "FromClass"]), causes);
    }
    // A claim's and a class's share of what drivers are told were checked when they were written: their number is twice that.
    let given: Vec<Value> = devices.each("config").take(CONFIGURATIONS).map(|config| config.value.clone()).collect();
    for part in given.chunks(MANY) {
        let object = serde_json::json!({ "config": part });
        configurations(&Field::new(devices.path.as_str(), &object), None, causes);
    }
    let selector = allocation.get("nodeSelector");
    if selector.is_set() {
        for term in selector.each("nodeSelectorTerms") {
            crate::strategy::pod::node_term(&term, causes);
        }
    }
}

fn reserved(status: &Field<'_>, old: &Value, causes: &mut Causes) {
    let list = status.get("reservedFor");
    at_most(&list, CONSUMERS, causes);
    let known: HashSet<&str> =
        old["status"]["reservedFor"].as_array().into_iter().flatten().filter_map(|c| c["uid"].as_str()).collect();
    let mut fresh = false;
    for consumer in status.each("reservedFor").take(CONSUMERS) {
        for name in ["resource", "name", "uid"] {
            consumer.get(name).check(&Rule::Needed, causes);
        }
        fresh |= !known.contains(consumer.get("uid").text());
    }
    if !list.is_empty() && !status.get("allocation").is_set() {
        list.forbidden("may not be specified when `allocated` is not set", causes);
    }
    if fresh && !old["metadata"]["deletionTimestamp"].is_null() {
        list.forbidden(
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            causes,
        );
    }
}

/// What drivers report of the devices: of those that the claim has.
fn reports(status: &Field<'_>, causes: &mut Causes) {
    let id = |of: &Field<'_>| ["driver", "pool", "device"].map(|name| of.get(name).text().to_owned());
    let allocated: HashSet<_> = status.get("allocation").get("devices").each("results").map(|r| id(&r)).collect();
    for report in status.each("devices") {
        if !allocated.contains(&id(&report)) {
            report.invalid("must be an allocated device in the claim", causes);
        }
        let data = report.get("data");
        if data.is_set() && data.value.to_string().len() > PARAMETERS {
            let message = format!("Too long: may not be more than {PARAMETERS} bytes");
            causes.push(cause("FieldValueTooLong", &data.path, message));
        }
        at_most(&report.get("conditions"), 8, causes);
        let network = report.get("networkData");
        short(&network.get("interfaceName"), 256, causes);
        short(&network.get("hardwareAddress"), 128, causes);
        at_most(&network.get("ips"), 16, causes);
        for address in network.each("ips").take(16) {
            if address.text().parse::<ipnet::IpNet>().is_err() {
                address.invalid("must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)", causes);
            }
        }
    }
}
