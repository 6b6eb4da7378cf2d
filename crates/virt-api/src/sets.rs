//! The webhooks of sets and pools. What they make, virt-controller makes, whom nobody asks what it may: so whoever writes a template is judged as
//! if they made a machine of it themselves, by its content, by the networks it names and by what its disks are copied from.

use kit::admission::{Cause, Request, Verdict};
use kube::Client;

use crate::defaults::Defaults;
use crate::validate::sets::{self, Made, POOL, SET};
use crate::validate::{self, Rules};
use crate::{chosen, copies, networks};

/// `/virtualmachinereplicaset-validate`.
pub(crate) async fn set(client: &Client, request: &Request, rules: &Rules) -> Verdict {
    let made = match sets::set(request) {
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
    let mut made = match sets::pool(request) {
        Ok(Some(made)) => made,
        Ok(None) => return Verdict::allow(),
        Err(causes) => return Verdict::Invalid(causes),
    };
    let verdict = match machine(client, &mut made, rules, defaults).await {
        Ok(verdict) | Err(verdict) => verdict,
    };
    answer(made, POOL, verdict)
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
