//! The API groups of virtualization: their types, words, defaults and quantities. No I/O, no client, no clock.

mod generated;
mod wire;

pub mod quantity;

/// Group `kubevirt.io`.
pub mod kubevirt {
    pub mod conditions;
    pub mod eviction;
    pub mod identity;
    pub mod words;

    pub use crate::generated::kubevirt_v1 as v1;
}

/// Group `migrations.kubevirt.io`.
pub mod migrations {
    pub use crate::generated::migrations_v1alpha1 as v1alpha1;
}

/// Group `cdi.kubevirt.io`, as far as virtual machines embed it.
pub mod cdi {
    pub use crate::generated::cdi_v1beta1 as v1beta1;
}
