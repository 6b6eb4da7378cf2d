//! What the VMI says of the credentials that its guest's agent is given. Pure.

use api::kubevirt::constants::condition::ACCESS_CREDENTIALS_SYNCHRONIZED;
use api::kubevirt::v1::VirtualMachineInstanceCondition as Condition;
use domain::CredentialsOutcome;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::set;

/// Writes what became of them. Before a launcher knows, as after a migration, what was said stands.
pub(super) fn synchronized(list: &mut Vec<Condition>, outcome: Option<&CredentialsOutcome>, now: &Time) {
    let Some(CredentialsOutcome { succeeded, message }) = outcome else { return };
    let status = if *succeeded { "True" } else { "False" };
    let message = Some(message.as_str()).filter(|message| !message.is_empty());
    set(list, ACCESS_CREDENTIALS_SYNCHRONIZED, status, None, message, now);
}

/// What is told to people when that has changed: true for bad news, the reason, the message.
pub(crate) fn news(before: &[Condition], now: &[Condition]) -> Option<(bool, &'static str, String)> {
    let find = |list: &'_ [Condition]| {
        let found = list.iter().find(|known| known.type_ == ACCESS_CREDENTIALS_SYNCHRONIZED);
        found.map(|known| (known.status.clone(), known.message.clone().unwrap_or_default()))
    };
    let (status, message) = find(now).filter(|said| find(before).as_ref() != Some(said))?;
    if status == "True" {
        return Some((false, "AccessCredentialsSyncSuccess", "Access credentials sync successful.".to_owned()));
    }
    Some((true, "AccessCredentialsSyncFailed", format!("Access credentials sync failed: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(succeeded: bool, message: &str) -> CredentialsOutcome {
        CredentialsOutcome { succeeded, message: message.to_owned() }
    }

    #[test]
    fn each_change_is_told_once() {
        let now = Time(jiff::Timestamp::UNIX_EPOCH);
        let mut list = Vec::new();
        let mut check = |told: Option<CredentialsOutcome>, expect: Option<(bool, &str)>| {
            let before = list.clone();
            synchronized(&mut list, told.as_ref(), &now);
            let found = news(&before, &list);
            assert_eq!(found.as_ref().map(|(bad, _, message)| (*bad, message.as_str())), expect);
        };
        let (good, bad) = ("Access credentials sync successful.", "Access credentials sync failed: no user eve");
        check(None, None);
        check(Some(outcome(false, "no user eve")), Some((true, bad)));
        check(Some(outcome(false, "no user eve")), None);
        check(Some(outcome(false, "none")), Some((true, "Access credentials sync failed: none")));
        check(Some(outcome(true, "")), Some((false, good)));
        check(Some(outcome(true, "")), None);
        // Another launcher has taken over, and has not said anything yet.
        check(None, None);
        assert_eq!((list[0].status.as_str(), list.len()), ("True", 1));
    }
}
