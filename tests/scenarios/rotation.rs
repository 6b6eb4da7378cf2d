//! Every certificate of the product lives for minutes and is renewed ten times, leaf and authority, under everything that goes
//! over TLS: nothing of it breaks.

mod seen;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machine;
use e2e::product::{self, Operator};
use e2e::{Namespace, node, wait};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use self::seen::Seen;
use crate::traffic::{Prepared, STAYS, Stream, machines};
use crate::{long, mover, two_nodes};

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("nothing_breaks_while_every_certificate_is_renewed_ten_times", nothing_breaks)]
}

const ROTATIONS: usize = 10;
/// Of HyperConverged's own authority: it lives for more than ten minutes, and the next one is announced for some of them.
const ROTATIONS_OF_ITS_OWN: usize = 3;
const STREAMS: [Stream; 8] = [
    Stream::Migrations,
    Stream::Uploads,
    Stream::Imports,
    Stream::Exports,
    Stream::Download,
    Stream::Screen,
    Stream::Console,
    Stream::Requests,
];
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Certificates live for seconds: 150, and those that sign them 300. A kubelet takes 45 to show a pod what has changed.
struct Short;

impl Short {
    fn set() -> Result<Self> {
        let (ca, leaf) = (
            json!({ "duration": "300s", "renewBefore": "225s" }),
            json!({ "duration": "150s", "renewBefore": "100s" }),
        );
        let replace = |path: &str, value: Value| json!([{ "op": "add", "path": path, "value": value }]);
        let intervals = json!({
            "caRotateInterval": "300s", "caOverlapInterval": "225s", "certRotateInterval": "150s", "certOverlapInterval": "100s",
        });
        let kubevirt = json!({ "selfSigned": { "ca": ca, "server": leaf } });
        product::patch_others(&[
            (Operator::KubeVirt, replace("/spec/certificateRotateStrategy", kubevirt)),
            (Operator::Cdi, replace("/spec/certConfig", json!({ "ca": ca, "server": leaf, "client": leaf }))),
            (Operator::NetworkAddons, replace("/spec/selfSignConfiguration", intervals)),
        ])?;
        let short = Short;
        // HyperConverged takes nothing below ten minutes: its own webhook's certificate is renewed long before its end.
        product::merge(&json!({ "security": { "certConfig": {
            "ca": { "duration": "12m", "renewBefore": "10m30s" }, "server": { "duration": "11m", "renewBefore": "10m10s" },
        } } }))?;
        Ok(short)
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        let all = [Operator::KubeVirt, Operator::Cdi, Operator::NetworkAddons];
        // What stays short is renewed often, and nothing else.
        let _ = product::patch_others(&all.map(|operator| (operator, Value::Null)));
        let _ = product::merge(&json!({ "security": { "certConfig": null } }));
    }
}

/// Which QEMU runs a machine that stays where it is.
fn qemu(space: &Namespace) -> Result<node::Process> {
    node::process(machine::pod_uid(&space.get("vmi", STAYS)?), "qemu-system-x86_64")
}

fn nothing_breaks() -> Result<()> {
    // What they hold is needed for the guests of this one.
    mover::shut_down();
    two_nodes::ready()?;
    let space = Namespace::new("rotation")?;
    machines(&space)?;
    let prepared = Prepared::new(&space)?;
    let before = qemu(&space)?;
    let _short = Short::set()?;
    let mut seen = Seen::default();
    let rotated = prepared.during(STREAMS, |failed| {
        wait::until("every certificate to be renewed ten times", LIMIT, || {
            seen.look()?;
            // Whoever has failed is told of at once.
            Ok((failed() || seen.is_done(ROTATIONS, ROTATIONS_OF_ITS_OWN)).then_some(()))
        })
    });
    rotated.and_then(|()| seen.overlapped()).with_context(|| format!("certificates seen: {}", seen.counts()))?;
    prepared.waited()?;
    ensure!(qemu(&space)? == before, "the guest that stays was started anew");
    Ok(())
}
