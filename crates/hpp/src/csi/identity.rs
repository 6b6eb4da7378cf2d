//! The Identity service.

use std::sync::Arc;

use rpc::csi::identity_server::Identity;
use rpc::csi::plugin_capability::{self, VolumeExpansion, service, volume_expansion};
use rpc::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use super::Driver;

pub(super) struct Service(pub(super) Arc<Driver>);

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let version = concat!("v", env!("CARGO_PKG_VERSION")).to_owned();
        let info = GetPluginInfoResponse { name: self.0.name.clone(), vendor_version: version, ..Default::default() };
        Ok(Response::new(info))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| PluginCapability {
            r#type: Some(plugin_capability::Type::Service(plugin_capability::Service { r#type: kind.into() })),
        };
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let capabilities = vec![
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            PluginCapability { r#type: Some(plugin_capability::Type::VolumeExpansion(online)) },
        ];
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        for pool in &self.0.pools {
            crate::pool::space(&pool.path).map_err(|error| {
                Status::failed_precondition(format!(
                    "pool {:?} at {} is not usable: {error}",
                    pool.name,
                    pool.path.display()
                ))
            })?;
        }
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
