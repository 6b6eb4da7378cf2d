//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::context::Context;
use crate::pod::probes::{http, port_number};

const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs one hook to its end; the error is a sentence.
pub(crate) async fn run(
    context: &Context,
    container: &Container,
    id: &str,
    hook: &LifecycleHandler,
    pod_ip: Option<&str>,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let reply = context.runtime.exec_sync(id, &command, 0).await.map_err(|error| error.user_message())?;
        return match reply.exit_code {
            0 => Ok(()),
            code => Err(format!(
                "command '{}' exited with {code}: {}{}",
                command.join(" "),
                String::from_utf8_lossy(&reply.stderr),
                String::from_utf8_lossy(&reply.stdout)
            )),
        };
    }
    if let Some(get) = &hook.http_get {
        let host = get.host.as_deref().filter(|host| !host.is_empty()).or(pod_ip).unwrap_or("127.0.0.1");
        let port = port_number(&get.port, container).ok_or("the hook's port has no number")?;
        let headers = get.http_headers.as_deref().unwrap_or_default();
        let https = get.scheme.as_deref() == Some("HTTPS");
        let path = get.path.as_deref().unwrap_or("/");
        let answer = tokio::time::timeout(HTTP_TIMEOUT, http::get(host, port, path, https, headers)).await;
        return match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("no answer in time".to_owned()),
        };
    }
    if let Some(tcp) = &hook.tcp_socket {
        let host = tcp.host.as_deref().or(pod_ip).unwrap_or("127.0.0.1");
        let port = port_number(&tcp.port, container).ok_or("the hook's port has no number")?;
        return tokio::net::TcpStream::connect((host, port)).await.map(drop).map_err(|error| error.to_string());
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
    }
    Ok(())
}
