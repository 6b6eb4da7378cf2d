//! Machine features: ACPI, APIC, SMM, paravirtual interfaces of KVM and Hyper-V, the translator's cache.

use api::kubevirt::v1::{DomainSpec, FeatureHyperv, FeatureState};

use crate::xml::Element;
use crate::{Environment, machine};

/// MiB of translated code QEMU keeps for one guest. Its own default grows to an eighth of the host.
const TRANSLATION_CACHE_MIB: u32 = 32;

fn on_off(enabled: Option<bool>) -> &'static str {
    if enabled.unwrap_or(true) { "on" } else { "off" }
}

pub(crate) fn element(spec: &DomainSpec, environment: &Environment) -> Element {
    let features = spec.features.clone().unwrap_or_default();
    let mut element = Element::new("features");
    if features.acpi.as_ref().and_then(|acpi| acpi.enabled).unwrap_or(true) {
        element = element.child(Element::new("acpi"));
    }
    if let Some(apic) = features.apic.filter(|apic| apic.enabled.unwrap_or(true)) {
        let eoi = apic.end_of_interrupt.filter(|eoi| *eoi).map(|_| "on");
        element = element.child(Element::new("apic").attr_opt("eoi", eoi));
    } else {
        element = element.child(Element::new("apic"));
    }
    let smm = features.smm.as_ref().map(|smm| on_off(smm.enabled));
    if let Some(state) = if machine::secure_boot(spec) { Some("on") } else { smm } {
        element = element.child(Element::new("smm").attr("state", state));
    }
    if environment.emulation {
        let cache = Element::with_text("tb-cache", TRANSLATION_CACHE_MIB).attr("unit", "MiB");
        return element.child(Element::new("tcg").child(cache));
    }
    if features.hyperv_passthrough.as_ref().is_some_and(|pass| pass.enabled == Some(true)) {
        element = element.child(Element::new("hyperv").attr("mode", "passthrough"));
    } else if let Some(hyperv) = &features.hyperv {
        element = element.child(enlightenments(hyperv));
    }
    if let Some(kvm) = &features.kvm {
        let state = if kvm.hidden == Some(true) { "on" } else { "off" };
        element = element.child(Element::new("kvm").child(Element::new("hidden").attr("state", state)));
    }
    if let Some(lock) = &features.pvspinlock {
        element = element.child(Element::new("pvspinlock").attr("state", on_off(lock.enabled)));
    }
    element
}

/// What `spec` asks for that only KVM can do, by its fields: an emulated guest is defined without.
pub fn features_of_kvm(spec: &DomainSpec) -> Vec<&'static str> {
    let features = spec.features.clone().unwrap_or_default();
    let timers = spec.clock.as_ref().and_then(|clock| clock.timer.as_ref());
    let passthrough = features.hyperv_passthrough.is_some_and(|pass| pass.enabled == Some(true));
    let asked = [
        ("features.hyperv", features.hyperv.is_some()),
        ("features.hypervPassthrough", passthrough),
        ("features.kvm", features.kvm.is_some()),
        ("features.pvspinlock", features.pvspinlock.is_some()),
        ("clock.timer.hyperv", timers.is_some_and(|timers| timers.hyperv.is_some())),
        ("clock.timer.kvm", timers.is_some_and(|timers| timers.kvm.is_some())),
    ];
    asked.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| field).collect()
}

fn enlightenments(hyperv: &FeatureHyperv) -> Element {
    let mut element = Element::new("hyperv");
    let states: [(&'static str, &Option<FeatureState>); 10] = [
        ("relaxed", &hyperv.relaxed),
        ("vapic", &hyperv.vapic),
        ("vpindex", &hyperv.vpindex),
        ("runtime", &hyperv.runtime),
        ("synic", &hyperv.synic),
        ("reset", &hyperv.reset),
        ("frequencies", &hyperv.frequencies),
        ("reenlightenment", &hyperv.reenlightenment),
        ("ipi", &hyperv.ipi),
        ("evmcs", &hyperv.evmcs),
    ];
    for (name, state) in states {
        element = element.children(state.as_ref().map(|s| Element::new(name).attr("state", on_off(s.enabled))));
    }
    if let Some(spinlocks) = &hyperv.spinlocks {
        let retries = spinlocks.spinlocks.unwrap_or(4096);
        element =
            element.child(Element::new("spinlocks").attr("state", on_off(spinlocks.enabled)).attr("retries", retries));
    }
    if let Some(timer) = &hyperv.synictimer {
        let mut stimer = Element::new("stimer").attr("state", on_off(timer.enabled));
        if let Some(direct) = &timer.direct {
            stimer = stimer.child(Element::new("direct").attr("state", on_off(direct.enabled)));
        }
        element = element.child(stimer);
    }
    if let Some(flush) = &hyperv.tlbflush {
        let mut tlbflush = Element::new("tlbflush").attr("state", on_off(flush.enabled));
        if let Some(direct) = &flush.direct {
            tlbflush = tlbflush.child(Element::new("direct").attr("state", on_off(direct.enabled)));
        }
        if let Some(extended) = &flush.extended {
            tlbflush = tlbflush.child(Element::new("extended").attr("state", on_off(extended.enabled)));
        }
        element = element.child(tlbflush);
    }
    if let Some(vendor) = &hyperv.vendorid {
        element = element.child(
            Element::new("vendor_id")
                .attr("state", on_off(vendor.enabled))
                .attr_opt("value", vendor.vendorid.as_deref()),
        );
    }
    element
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn features_that_an_emulated_guest_lacks_are_named() {
        let asked = json!({
            "features": { "acpi": {}, "hyperv": { "relaxed": {} }, "pvspinlock": {}, "hypervPassthrough": {} },
            "clock": { "timer": { "kvm": {}, "rtc": {} } },
        });
        let named = features_of_kvm(&serde_json::from_value(asked).unwrap());
        assert_eq!(named, ["features.hyperv", "features.pvspinlock", "clock.timer.kvm"]);
    }
}
