//! The webhook that converts between the versions of a definition.

use serde_json::Value;

use crate::hook::Client;

/// The conversion webhook of a definition.
#[derive(Debug)]
pub struct ConversionWebhook {
    pub(crate) client: Client,
    /// The version of ConversionReview it takes, `v1` or `v1beta1`.
    pub(crate) review_version: String,
}

impl ConversionWebhook {
    /// The webhook of `spec.conversion`, None for another strategy.
    #[must_use]
    pub fn new(conversion: &Value) -> Option<Self> {
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let taken = webhook["conversionReviewVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let known = taken.into_iter().find(|version| matches!(*version, "v1" | "v1beta1"));
        Some(Self { client: Client::new(&webhook["clientConfig"]), review_version: known.unwrap_or("v1").to_owned() })
    }
}
