//! The guest's clock and timers.

use api::kubevirt::v1::DomainSpec;

use crate::Environment;
use crate::xml::Element;

pub(crate) fn element(spec: &DomainSpec, environment: &Environment) -> Element {
    let Some(clock) = &spec.clock else {
        return Element::new("clock").attr("offset", "utc");
    };
    let mut element = Element::new("clock");
    element = match (&clock.timezone, &clock.utc) {
        (Some(zone), _) => element.attr("offset", "timezone").attr("timezone", zone),
        (None, Some(utc)) => match utc.offset_seconds {
            Some(seconds) => element.attr("offset", "variable").attr("adjustment", seconds).attr("basis", "utc"),
            None => element.attr("offset", "utc"),
        },
        (None, None) => element.attr("offset", "utc"),
    };
    let Some(timers) = &clock.timer else {
        return element;
    };
    let timer = |name: &str, present: Option<bool>| {
        Element::new("timer").attr("name", name).attr_opt("present", present.map(|p| if p { "yes" } else { "no" }))
    };
    if let Some(rtc) = &timers.rtc {
        element = element.child(
            timer("rtc", rtc.present)
                .attr_opt("tickpolicy", rtc.tick_policy.as_deref())
                .attr_opt("track", rtc.track.as_deref()),
        );
    }
    if let Some(pit) = &timers.pit {
        element = element.child(timer("pit", pit.present).attr_opt("tickpolicy", pit.tick_policy.as_deref()));
    }
    if let Some(hpet) = &timers.hpet {
        element = element.child(timer("hpet", hpet.present).attr_opt("tickpolicy", hpet.tick_policy.as_deref()));
    }
    // The other two are services of KVM.
    if !environment.emulation {
        if let Some(kvm) = &timers.kvm {
            element = element.child(timer("kvmclock", kvm.present));
        }
        if let Some(hyperv) = &timers.hyperv {
            element = element.child(timer("hypervclock", hyperv.present));
        }
    }
    element
}
