//! The API groups of virtualization: their types, constants and defaults. No I/O, no client, no clock.

#![warn(missing_docs)]

mod conditions;
mod generated;
mod wire;

pub mod hco;
pub mod hpp;
pub mod openshift;
pub mod template;
pub mod unserved;

/// Group `kubevirt.io`.
pub mod kubevirt {
    pub mod constants;
    pub mod credentials;
    pub mod eviction;
    pub mod hotplug;
    pub mod identity;
    pub mod memory_dump;
    pub mod size;
    pub mod tls;
    mod volumes;

    pub use crate::generated::kubevirt_v1 as v1;
}

/// Group `migrations.kubevirt.io`.
pub mod migrations {
    pub use crate::generated::migrations_v1alpha1 as v1alpha1;
}

/// Group `backup.kubevirt.io`.
pub mod backup {
    pub use crate::generated::backup_v1alpha1 as v1alpha1;
}

/// Group `snapshot.kubevirt.io`.
pub mod snapshot {
    pub use crate::generated::snapshot_v1beta1 as v1beta1;
}

/// Group `clone.kubevirt.io`.
pub mod clone {
    pub use crate::generated::clone_v1beta1 as v1beta1;
}

/// Group `pool.kubevirt.io`.
pub mod pool {
    pub use crate::generated::pool_v1beta1 as v1beta1;
}

/// Group `export.kubevirt.io`.
pub mod export {
    pub mod constants;
    pub mod lending;

    pub use crate::generated::export_v1 as v1;
}

/// Groups `cdi.kubevirt.io` and `upload.cdi.kubevirt.io`.
pub mod cdi {
    pub mod constants;

    pub use crate::generated::cdi_v1beta1 as v1beta1;
}
