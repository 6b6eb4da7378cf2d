//! What the `kube` crate has to know of a kind whose type is written by hand.

#[doc(hidden)]
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
#[doc(hidden)]
pub use kube_core::{ClusterResourceScope, NamespaceResourceScope, Resource};

/// Implements [`kube_core::Resource`] for a type with a field `metadata: ObjectMeta`, whose name is the kind:
/// `meta::kind!(Route, "route.openshift.io", "v1", "routes", NamespaceResourceScope)`. The scope is one of `kube_core`'s, which
/// need not be imported.
#[macro_export]
macro_rules! kind {
    ($kind:ident, $group:expr, $version:expr, $plural:literal, $scope:ident) => {
        impl $crate::kind::Resource for $kind {
            type DynamicType = ();
            type Scope = $crate::kind::$scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                ::std::stringify!($kind).into()
            }
            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &$crate::kind::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut $crate::kind::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
