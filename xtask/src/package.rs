//! Packages of the product, for those who install with Helm, kustomize or the Operator Lifecycle Manager. Each is files by path.

pub(crate) mod helm;
pub(crate) mod kustomize;
pub(crate) mod olm;
