//! Values in the forms that users write them: fractions where a quantity is text, addresses with leading zeros.

use std::net::Ipv4Addr;

use meta::quantity::Amount;
use serde_json::{Value, json};

/// Resource lists and single quantities of an instance's spec.
const LISTS: [&str; 2] = ["/domain/resources/requests", "/domain/resources/limits"];
const SINGLE: [&str; 3] =
    ["/domain/memory/guest", "/domain/memory/maxGuest", "/domain/memory/reservedOverhead/addedOverhead"];

/// Every quantity of an instance's spec.
fn quantities(spec: &mut Value, each: impl Fn(&mut Value)) {
    for list in LISTS {
        spec.pointer_mut(list).and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, value)| each(value));
    }
    for one in SINGLE {
        spec.pointer_mut(one).into_iter().for_each(&each);
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        volume.pointer_mut("/emptyDisk/capacity").into_iter().for_each(&each);
    }
}

/// `2.2` is written `2200m`: schemas know whole numbers and text.
fn fraction(value: &mut Value) {
    if value.is_f64()
        && let Ok(amount) = value.to_string().parse::<Amount>()
    {
        *value = json!(amount.to_decimal().0);
    }
}

/// Writes what an instance's spec gives as a fraction as the text that it means.
pub(super) fn instance(spec: &mut Value) {
    quantities(spec, fraction);
}

/// The same for the DataVolumes of a machine.
pub(super) fn data_volumes(templates: Option<&mut Value>) {
    for template in templates.and_then(Value::as_array_mut).into_iter().flatten() {
        for list in ["requests", "limits"] {
            for kind in ["pvc", "storage"] {
                let all = template.pointer_mut(&format!("/spec/{kind}/resources/{list}"));
                all.and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, value)| fraction(value));
            }
        }
    }
}

/// An instance's spec with each quantity in one form, for comparing: clients in Go write `1.5Gi` back as `1536Mi`.
pub(crate) fn comparable(mut spec: Value) -> Value {
    quantities(&mut spec, |value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if let Ok(amount) = text.parse::<Amount>() {
            *value = json!(amount.to_decimal().0);
        }
    });
    spec
}

/// An IPv4 address in decimal; leading zeros are nothing more.
pub(crate) fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        let significant = part.trim_start_matches('0');
        *octet = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// Writes the pod networks' addresses without leading zeros.
pub(super) fn ranges(spec: &mut Value) {
    for network in spec.get_mut("networks").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(range) = network.pointer_mut("/pod/vmNetworkCIDR") else { continue };
        let plain = range.as_str().and_then(|text| {
            let (address, prefix) = text.split_once('/')?;
            Some(format!("{}/{}", ipv4(address)?, prefix.parse::<u8>().ok()?))
        });
        if let Some(plain) = plain {
            *range = json!(plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_leading_zeros() {
        for (text, means) in [("10.010.002.0", "10.10.2.0"), ("010.0.0.1", "10.0.0.1"), ("000.0.0.0", "0.0.0.0")] {
            assert_eq!(ipv4(text).map(|at| at.to_string()).as_deref(), Some(means));
        }
        for wrong in ["10.0.0", "10.0.0.0.0", "10.0.0.256", "10.0.0.0x1", "10..0.1", "+1.0.0.1"] {
            assert_eq!(ipv4(wrong), None, "{wrong}");
        }
        let mut spec = json!({ "networks": [{ "name": "a", "pod": { "vmNetworkCIDR": "10.010.002.0/024" } }] });
        ranges(&mut spec);
        assert_eq!(spec["networks"][0]["pod"]["vmNetworkCIDR"], "10.10.2.0/24");
    }

    #[test]
    fn fractions_become_the_quantities_they_mean() {
        let mut spec = json!({
            "domain": {
                "resources": { "requests": { "cpu": 2.2, "memory": 2_222_222.2 }, "limits": { "cpu": 2 } },
                "memory": { "guest": 1.5e9 },
            },
            "volumes": [{ "name": "scratch", "emptyDisk": { "capacity": 0.5 } }],
        });
        instance(&mut spec);
        assert_eq!(
            spec,
            json!({
                "domain": {
                    "resources": {
                        "requests": { "cpu": "2200m", "memory": "2222222200m" }, "limits": { "cpu": 2 },
                    },
                    "memory": { "guest": "1500M" },
                },
                "volumes": [{ "name": "scratch", "emptyDisk": { "capacity": "500m" } }],
            })
        );
        let mut templates = json!([{ "spec": { "storage": { "resources": { "requests": { "storage": 1.5e9 } } } } }]);
        data_volumes(Some(&mut templates));
        assert_eq!(templates[0]["spec"]["storage"]["resources"]["requests"]["storage"], "1500M");
    }

    #[test]
    fn one_amount_is_one_amount_in_every_form() {
        let guest = |amount: Value| comparable(json!({ "domain": { "memory": { "guest": amount } } }));
        assert_eq!(guest(json!("1.5Gi")), guest(json!("1536Mi")));
        assert_eq!(guest(json!(2_222_222)), guest(json!("2222222")));
        assert_ne!(guest(json!("1Gi")), guest(json!("1G")));
    }
}
