//! What is said of a template. Pure.

use api::template::{self, Status, VirtualMachineTemplate};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions;

const READY: &str = "Ready";

/// Whether its status is about what it holds now.
pub fn is_judged(template: &VirtualMachineTemplate) -> bool {
    let conditions = template.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == READY);
    ready.is_some_and(|ready| ready.observed_generation == template.metadata.generation)
}

/// The status it should have.
pub fn of(template: &VirtualMachineTemplate, now: Timestamp) -> Status {
    let mut status = template.status.clone().unwrap_or_default();
    let (value, reason, message) = match template::check(&template.spec) {
        Ok(()) => ("True", "TemplateReady", "VirtualMachineTemplate is ready to be processed".to_owned()),
        Err(refusal) => ("False", "TemplateInvalid", refusal.to_string()),
    };
    conditions::set(&mut status.conditions, READY, value, Some(reason), Some(&message), &Time(now));
    for condition in status.conditions.iter_mut().filter(|condition| condition.type_ == READY) {
        condition.observed_generation = template.metadata.generation;
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(parameters: Value) -> VirtualMachineTemplate {
        let spec = json!({ "parameters": parameters, "virtualMachine": {} });
        serde_json::from_value(json!({ "metadata": { "name": "t", "generation": 3 }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_template_that_can_be_processed_is_ready() {
        let mut template = template(json!([{ "name": "A" }]));
        assert!(!is_judged(&template));
        let status = of(&template, Timestamp::UNIX_EPOCH);
        assert_eq!((status.conditions[0].status.as_str(), status.conditions[0].observed_generation), ("True", Some(3)));
        template.status = Some(status.clone());
        assert!(is_judged(&template));
        assert_eq!(of(&template, Timestamp::UNIX_EPOCH), status);
        template.metadata.generation = Some(4);
        assert!(!is_judged(&template), "it has changed");
    }

    #[test]
    fn one_that_cannot_be_says_why() {
        let status = of(&template(json!([{ "name": "A", "generate": "uuid" }])), Timestamp::UNIX_EPOCH);
        let ready = &status.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "TemplateInvalid"));
        assert!(ready.message.starts_with("spec.parameters[0].generate: "), "{}", ready.message);
    }
}
