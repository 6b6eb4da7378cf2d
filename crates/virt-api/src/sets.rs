//! The webhooks of sets and pools. What they make, virt-controller makes, whom nobody asks what it may: so whoever writes a template is judged as
//! if they made a machine of it themselves, by its content, by the networks it names and by what its disks are copied from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::Chain;
use kit::admission::{Cause, Request, Verdict};
use kube::Client;
use origin::leave;

use crate::defaults::Defaults;
use crate::validate::sets::{self, Made, POOL, SET};
use crate::validate::{self, Rules};
use crate::{chosen, copies, networks};

/// `/virtualmachinereplicaset-validate`.
pub(crate) async fn set(client: &Client, request: &Request, rules: &Rules) -> Verdict {
    let unjudged = match is_unjudged(client, request, rules, "/spec/template/spec/networks").await {
        Ok(unjudged) => unjudged,
        Err(verdict) => return verdict,
    };
    let made = match sets::set(request, unjudged) {
        Ok(Some(made)) => made,
        Ok(None) => return Verdict::allow(),
        Err(causes) => return Verdict::Invalid(causes),
    };
    let verdict = validate::vmi_create(&made.request, rules);
    let verdict = if rules.is_component(&request.user_info.username) {
        verdict
    } else {
        networks::judge(client, &made.request, verdict).await
    };
    answer(made, SET, verdict)
}

/// `/virtualmachinepool-validate`.
pub(crate) async fn pool(client: &Client, request: &Request, rules: &Rules, defaults: &Defaults) -> Verdict {
    let networks = "/spec/virtualMachineTemplate/spec/template/spec/networks";
    let unjudged = match is_unjudged(client, request, rules, networks).await {
        Ok(unjudged) => unjudged,
        Err(verdict) => return verdict,
    };
    let mut made = match sets::pool(request, unjudged) {
        Ok(Some(made)) => made,
        Ok(None) => return Verdict::allow(),
        Err(causes) => return Verdict::Invalid(causes),
    };
    let verdict = match machine(client, &mut made, rules, defaults).await {
        Ok(verdict) | Err(verdict) => verdict,
    };
    answer(made, POOL, verdict)
}

/// True when an object is written over that was stored while there were no webhooks, and that names `networks` of others: nobody was asked whether
/// its writer might. So whoever writes it now, be it a note, is asked as if they made it.
async fn is_unjudged(client: &Client, request: &Request, rules: &Rules, networks: &str) -> Result<bool, Verdict> {
    let component = rules.is_component(&request.user_info.username);
    let names_others = || networks::of_others(&request.object, networks, &request.namespace);
    if request.operation != "UPDATE" || component || validate::deleting(&request.object) || !names_others() {
        return Ok(false);
    }
    let metadata: ObjectMeta = serde_json::from_value(request.old_object["metadata"].clone()).unwrap_or_default();
    match leave::is_judged(client, &metadata).await {
        Ok(judged) => Ok(!judged),
        Err(error) => {
            let message = format!("cannot ask since when there are webhooks: {}", Chain(&error));
            Err(Verdict::Deny { code: 500, reason: "InternalError", message })
        }
    }
}

async fn machine(client: &Client, made: &mut Made, rules: &Rules, defaults: &Defaults) -> Result<Verdict, Verdict> {
    // What a volume's labels say is inferred for each machine later, without asking who wants to know it.
    made.request.object = chosen::complete(client, &made.request, made.request.object.clone()).await?;
    let template = chosen::template(client, &made.request, defaults.binding()).await?;
    let verdict = validate::vm(&made.request, template.as_ref(), rules);
    if rules.is_component(&made.request.user_info.username) {
        return Ok(verdict);
    }
    let verdict = networks::judge(client, &made.request, verdict).await;
    Ok(copies::judge(client, &made.request, verdict).await)
}

/// `verdict` of what is made, in terms of what was written.
fn answer(made: Made, (spec, metadata): (&str, &str), verdict: Verdict) -> Verdict {
    let place = |field: &str| match (field.strip_prefix("spec"), field.strip_prefix("metadata")) {
        (Some(rest), _) => format!("{spec}{rest}"),
        (None, Some(rest)) => format!("{metadata}{rest}"),
        (None, None) => field.to_owned(),
    };
    match verdict {
        Verdict::Invalid(found) => {
            let placed = found.into_iter().map(|cause| {
                let field = place(&cause.field);
                let message = cause.message.replace(&cause.field, &field);
                Cause { field, message, ..cause }
            });
            Verdict::Invalid(placed.collect())
        }
        Verdict::Allow { warnings } => Verdict::Allow { warnings: [made.warnings, warnings].concat() },
        other => other,
    }
}
