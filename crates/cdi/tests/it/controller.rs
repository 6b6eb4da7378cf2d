//! cdi-controller.

mod clones;
mod cluster;
mod crons;
mod forklift;
mod imports;
mod metrics;
mod polls;
mod profiles;
mod quotas;
mod registries;
mod transfers;
mod uploads;
