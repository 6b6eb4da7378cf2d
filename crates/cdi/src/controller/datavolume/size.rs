//! The size of what a DataVolume clones, for one that asks for none.

use api::cdi::v1beta1::DataVolume;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::store::Key;

use crate::controller::context::Context;
use crate::controller::datavolume::plan::{self, Filling};
use crate::controller::settings::bytes;
use crate::controller::storage::size_of;

/// The bytes that the claim of `volume` needs for what it is a clone of; none while that is not known.
pub fn of_source(context: &Context, volume: &DataVolume, filling: Filling) -> Option<u64> {
    let namespace = plan::source_namespace(volume);
    let source = volume.spec.source.as_deref()?;
    match filling {
        Filling::Clone => size_of(&context.claims.get(&Key::new(namespace, source.pvc.as_ref()?.name.as_str()))?),
        Filling::Restore => {
            let snapshot = context.snapshots.get(&Key::new(namespace, source.snapshot.as_ref()?.name.as_str()))?;
            let size = snapshot.data["status"]["restoreSize"].as_str()?;
            Some(bytes(&Quantity(size.to_owned()))).filter(|size| *size > 0)
        }
        _ => None,
    }
}
