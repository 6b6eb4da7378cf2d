//! Registering with the kubelet, for a driver that brings no registrar.

use std::path::{Path, PathBuf};

use kit::shutdown::CancellationToken;
use rpc::registration::registration_server::{Registration, RegistrationServer};
use rpc::registration::{CSI_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};

use crate::Error;

struct Service {
    name: String,
    endpoint: PathBuf,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: CSI_PLUGIN.into(),
            name: self.name.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.name, "registered with the kubelet");
        } else {
            tracing::error!(driver = self.name, error = status.error, "the kubelet refused the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Answers the kubelet on `socket` that the driver `name` serves on `endpoint`, until `stop`; then the socket goes, and
/// the kubelet forgets the driver.
///
/// # Errors
/// When the socket cannot be served.
pub async fn serve(name: String, endpoint: PathBuf, socket: &Path, stop: CancellationToken) -> Result<(), Error> {
    let incoming = super::listen(socket)?;
    let served = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(Service { name, endpoint }))
        .serve_with_incoming_shutdown(incoming, stop.cancelled())
        .await;
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::file("remove", socket)(error)),
        _ => {}
    }
    served.map_err(|source| Error::Serve { socket: socket.into(), source })
}
