//! What several controllers read from objects. Pure, and below the stores: whoever looks at an object asks here what it says.

pub mod active;
pub mod claims;
pub mod copies;
pub mod data_volumes;
pub(crate) mod index;
pub mod instance;
pub mod launcher;
pub mod machine;
pub mod migration_state;
pub mod migrations;
pub mod nodes;
pub mod persistent_state;
pub mod put_back;
pub mod stand_ins;
pub(crate) mod trim;
pub mod volume_status;
pub mod volumes_change;
pub mod workload;
