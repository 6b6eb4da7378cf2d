//! How much memory the guest has, may grow to, and what backs it.

use api::kubevirt::size;
use api::kubevirt::v1::DomainSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

use crate::Error;
use crate::xml::Element;

fn amount(field: &'static str, quantity: &Quantity) -> Result<Amount, Error> {
    Amount::try_from(quantity).map_err(|_| malformed(field, quantity))
}

/// The field below `spec.domain` is no quantity.
pub(crate) fn malformed(field: &'static str, quantity: &Quantity) -> Error {
    Error::Quantity { field, value: quantity.0.clone() }
}

/// Bytes of guest memory: `memory.guest`, else the request, else the limit.
pub(crate) fn guest(spec: &DomainSpec) -> Result<u64, Error> {
    if let Some((field, quantity)) = size::asked_memory(spec) {
        return Ok(amount(field, quantity)?.bytes());
    }
    if let Some(page) = spec.memory.as_ref().and_then(|memory| memory.hugepages.as_ref()) {
        return Err(Error::Quantity {
            field: "memory.guest (required with hugepages)",
            value: page.page_size.clone().unwrap_or_default(),
        });
    }
    Err(Error::NoMemory)
}

/// Bytes the guest may grow to, when that is more than it starts with.
pub(crate) fn maximum(spec: &DomainSpec) -> Result<Option<u64>, Error> {
    let Some(max) = spec.memory.as_ref().and_then(|memory| memory.max_guest.as_ref()) else {
        return Ok(None);
    };
    let max = amount("memory.maxGuest", max)?.bytes();
    Ok((max > guest(spec)?).then_some(max))
}

pub(crate) fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}

pub(crate) fn elements(spec: &DomainSpec) -> Result<Vec<Element>, Error> {
    let bytes = guest(spec)?;
    if bytes == 0 {
        return Err(Error::NoMemory);
    }
    let mut out = Vec::new();
    if let Some(max) = maximum(spec)? {
        out.push(Element::with_text("maxMemory", kib(max)).attr("slots", 16).attr("unit", "KiB"));
    }
    out.push(Element::with_text("memory", kib(bytes)).attr("unit", "KiB"));
    if let Some(hugepages) = spec.memory.as_ref().and_then(|memory| memory.hugepages.as_ref()) {
        let mut pages = Element::new("hugepages");
        if let Some(size) = &hugepages.page_size {
            let size = amount("memory.hugepages.pageSize", &Quantity(size.clone()))?;
            pages = pages.child(Element::new("page").attr("size", kib(size.bytes())).attr("unit", "KiB"));
        }
        out.push(Element::new("memoryBacking").child(pages));
    }
    Ok(out)
}
