//! Which of these types are conditions, set and removed as [`meta::conditions`] says.

use meta::condition;

use crate::{cdi, export, hpp, kubevirt, pool, snapshot};

condition!(kubevirt::v1::KubeVirtCondition);
condition!(kubevirt::v1::VirtualMachineCondition);
condition!(kubevirt::v1::VirtualMachineInstanceCondition);
condition!(kubevirt::v1::VirtualMachineInstanceMigrationCondition);
condition!(kubevirt::v1::VirtualMachineInstanceReplicaSetCondition, last_probe_time);
condition!(pool::v1beta1::VirtualMachinePoolCondition, last_probe_time);
condition!(snapshot::v1beta1::Condition);
condition!(export::v1::Condition);
condition!(cdi::v1beta1::CDICondition, last_heartbeat_time);
condition!(hpp::Condition, last_heartbeat_time);
