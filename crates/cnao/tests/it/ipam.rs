//! kubevirt-ipam-controller: replicas with the rights they are deployed with, asked by the API server over their Service.

mod attacks;
mod cluster;
mod lifetime;
mod messages;
