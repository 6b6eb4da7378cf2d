//! Amounts of resources as the controllers count them: thousandths.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

/// Thousandths of a unit. Sums of what quantities can say stay far below its limits.
pub type Milli = i128;

/// Parses a quantity; `None` when it is malformed.
#[inline]
pub fn parse(text: &str) -> Option<Milli> {
    text.parse().ok().map(Amount::millis)
}

/// The value of a quantity; a malformed one counts as nothing (the API server admits none).
#[inline]
pub fn of(quantity: &Quantity) -> Milli {
    parse(&quantity.0).unwrap_or(0)
}

/// The canonical form: binary suffixes for memory and storage, decimal ones for the rest.
pub fn format(milli: Milli, binary: bool) -> Quantity {
    let amount = Amount::from_millis(milli);
    if binary { amount.to_binary() } else { amount.to_decimal() }
}
