//! Probes: one task a container asks at its period and reports changes to the pod's worker.

pub(crate) mod http;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::sync::mpsc;

use crate::context::{Context, about_container};
use crate::pod::plan::Doom;

/// What a probe found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Started,
    Ready(bool),
    /// The container must be stopped.
    Doomed(Doom),
}

/// What one question came to.
enum Answer {
    Good,
    /// The sentence for the event.
    Bad(String),
    /// It could not be asked, which says nothing of the container.
    Unknown(String),
}

/// By container id.
pub(crate) type Reports = mpsc::UnboundedSender<(String, Verdict)>;

/// A container to probe.
pub(crate) struct Target {
    pub(crate) context: Arc<Context>,
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) id: String,
    pub(crate) pod_ip: Option<String>,
    /// It was seen to have started before.
    pub(crate) started: bool,
}

/// True when there is anything to ask.
pub(crate) fn wanted(container: &Container) -> bool {
    container.startup_probe.is_some() || container.liveness_probe.is_some() || container.readiness_probe.is_some()
}

/// Probes until dropped.
pub(crate) async fn run(target: Target, reports: Reports) {
    if let Some(probe) = &target.container.startup_probe
        && !target.started
        && !startup(&target, probe, &reports).await
    {
        return;
    }
    let liveness = async {
        if let Some(probe) = &target.container.liveness_probe {
            liveness(&target, probe, &reports).await;
        }
    };
    let readiness = async {
        if let Some(probe) = &target.container.readiness_probe {
            readiness(&target, probe, &reports).await;
        }
    };
    futures::future::join(liveness, readiness).await;
}

async fn startup(target: &Target, probe: &Probe, reports: &Reports) -> bool {
    let mut failures = 0;
    delay(probe).await;
    loop {
        match ask(target, probe).await {
            Answer::Good => {
                // A receiver that is gone means a worker that is gone.
                let _ = reports.send((target.id.clone(), Verdict::Started));
                return true;
            }
            Answer::Unknown(why) => unknown(target, "Startup", &why),
            Answer::Bad(why) => {
                unhealthy(target, "Startup", &why);
                failures += 1;
                if failures >= probe.failure_threshold.unwrap_or(3).max(1) {
                    let reason = format!("Container {} failed startup probe, will be restarted", target.container.name);
                    let _ = reports.send((
                        target.id.clone(),
                        Verdict::Doomed(Doom { reason, grace: probe.termination_grace_period_seconds }),
                    ));
                    return false;
                }
            }
        }
        tokio::time::sleep(period(probe)).await;
    }
}

async fn liveness(target: &Target, probe: &Probe, reports: &Reports) {
    let mut failures = 0;
    delay(probe).await;
    loop {
        match ask(target, probe).await {
            Answer::Good => failures = 0,
            Answer::Unknown(why) => unknown(target, "Liveness", &why),
            Answer::Bad(why) => {
                unhealthy(target, "Liveness", &why);
                failures += 1;
                if failures >= probe.failure_threshold.unwrap_or(3).max(1) {
                    let reason =
                        format!("Container {} failed liveness probe, will be restarted", target.container.name);
                    let _ = reports.send((
                        target.id.clone(),
                        Verdict::Doomed(Doom { reason, grace: probe.termination_grace_period_seconds }),
                    ));
                    return;
                }
            }
        }
        tokio::time::sleep(period(probe)).await;
    }
}

async fn readiness(target: &Target, probe: &Probe, reports: &Reports) {
    let (mut ready, mut streak, mut last) = (None, 0, None);
    delay(probe).await;
    let begun = tokio::time::Instant::now();
    loop {
        let answer = ask(target, probe).await;
        // Until it is ready for the first time a container is asked more often, so that a fast start shows at once;
        // what it answers within its first period is nothing to worry about yet.
        let first = ready.is_none() && probe.initial_delay_seconds.unwrap_or(0) == 0;
        let early = first && begun.elapsed() < period(probe);
        let good = match answer {
            Answer::Good => true,
            _ if early => {
                tokio::time::sleep(eager(probe)).await;
                continue;
            }
            Answer::Bad(why) => {
                unhealthy(target, "Readiness", &why);
                false
            }
            Answer::Unknown(why) => {
                unknown(target, "Readiness", &why);
                tokio::time::sleep(period(probe)).await;
                continue;
            }
        };
        streak = if last == Some(good) { streak + 1 } else { 1 };
        last = Some(good);
        let needed = if good { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
        if streak >= needed.max(1) && ready != Some(good) {
            ready = Some(good);
            let _ = reports.send((target.id.clone(), Verdict::Ready(good)));
        }
        let pause = if first && !good { period(probe).min(Duration::from_secs(1)) } else { period(probe) };
        tokio::time::sleep(pause).await;
    }
}

/// A connection costs next to nothing, a process in the container does not.
fn eager(probe: &Probe) -> Duration {
    if probe.exec.is_some() { Duration::from_secs(1) } else { Duration::from_millis(200) }
}

fn unhealthy(target: &Target, kind: &str, why: &str) {
    let about = about_container(&target.pod, &target.container.name);
    target.context.events.warning(&about, "Unhealthy", format!("{kind} probe failed: {why}"));
}

fn unknown(target: &Target, kind: &str, why: &str) {
    let about = about_container(&target.pod, &target.container.name);
    let message = format!("{kind} probe errored and resulted in unknown state: {why}");
    target.context.events.warning(&about, "Unhealthy", message);
}

async fn delay(probe: &Probe) {
    let seconds = u64::try_from(probe.initial_delay_seconds.unwrap_or(0)).unwrap_or(0);
    if seconds > 0 {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

fn period(probe: &Probe) -> Duration {
    Duration::from_secs(u64::try_from(probe.period_seconds.unwrap_or(10)).unwrap_or(10).max(1))
}

async fn ask(target: &Target, probe: &Probe) -> Answer {
    let seconds = probe.timeout_seconds.unwrap_or(1).max(1);
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(1));
    if let Some(exec) = &probe.exec {
        let command = exec.command.clone().unwrap_or_default();
        return match target.context.runtime.exec_sync(&target.id, &command, i64::from(seconds)).await {
            Ok(reply) if reply.exit_code == 0 => Answer::Good,
            Ok(reply) => {
                let output = [reply.stdout, reply.stderr].concat();
                Answer::Bad(String::from_utf8_lossy(&output[..output.len().min(10_240)]).into_owned())
            }
            Err(error) if error.is_timeout() => {
                Answer::Bad(format!("command timed out after {seconds}s: {}", command.join(" ")))
            }
            Err(error) => Answer::Unknown(error.user_message()),
        };
    }
    match tokio::time::timeout(limit, ask_network(target, probe)).await {
        Ok(Ok(())) => Answer::Good,
        Ok(Err(why)) => Answer::Bad(why),
        Err(_) => Answer::Bad("context deadline exceeded (no answer in time)".to_owned()),
    }
}

/// The error is a sentence for the event.
async fn ask_network(target: &Target, probe: &Probe) -> Result<(), String> {
    let own = target.pod_ip.as_deref().unwrap_or("127.0.0.1");
    let no_port = || "the probe's port has no number".to_owned();
    if let Some(get) = &probe.http_get {
        let host = get.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(own);
        let port = port_number(&get.port, &target.container).ok_or_else(no_port)?;
        let https = get.scheme.as_deref() == Some("HTTPS");
        let headers = get.http_headers.as_deref().unwrap_or_default();
        let status = http::get(host, port, get.path.as_deref().unwrap_or("/"), https, headers).await?;
        if (200..400).contains(&status) { Ok(()) } else { Err(format!("HTTP probe failed with statuscode: {status}")) }
    } else if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(own);
        let port = port_number(&tcp.port, &target.container).ok_or_else(no_port)?;
        let dialled = tokio::net::TcpStream::connect((host, port)).await;
        dialled.map(drop).map_err(|error| format!("dial tcp {host}:{port}: {error}"))
    } else if let Some(grpc) = &probe.grpc {
        let port = u16::try_from(grpc.port).map_err(|_| no_port())?;
        health(own, port, grpc.service.clone().unwrap_or_default()).await
    } else {
        Ok(())
    }
}

/// A port by number, or by its name among the container's ports.
pub(crate) fn port_number(port: &IntOrString, container: &Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name))?.container_port,
        },
    };
    u16::try_from(number).ok().filter(|number| *number > 0)
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// grpc.health.v1: SERVING is 1.
async fn health(host: &str, port: u16, service: String) -> Result<(), String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let fail = |what: String| format!("failed to connect service \"{host}:{port}\": {what}");
    let endpoint =
        tonic::transport::Endpoint::try_from(format!("http://{host}:{port}")).map_err(|e| fail(e.to_string()))?;
    let channel = endpoint.connect().await.map_err(|error| fail(kit::Chain(&error).to_string()))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| fail(error.to_string()))?;
    let path = http_path("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let request = tonic::Request::new(HealthCheckRequest { service });
    match client.unary(request, path, codec).await {
        Ok(reply) if reply.get_ref().status == 1 => Ok(()),
        Ok(reply) => Err(format!("service unhealthy (responded with status {})", reply.get_ref().status)),
        Err(status) => Err(format!("gRPC health check failed: {}", status.message())),
    }
}

fn http_path(path: &'static str) -> ::http::uri::PathAndQuery {
    ::http::uri::PathAndQuery::from_static(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_by_name_and_number() {
        let container: Container =
            serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]})).unwrap();
        let check = |port: IntOrString, expect| assert_eq!(port_number(&port, &container), expect);
        check(IntOrString::Int(80), Some(80));
        check(IntOrString::String("web".into()), Some(8080));
        check(IntOrString::String("443".into()), Some(443));
        check(IntOrString::String("none".into()), None);
        check(IntOrString::Int(0), None);
    }
}
