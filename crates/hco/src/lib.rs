//! The HyperConverged operator: one object from which everything else follows.
