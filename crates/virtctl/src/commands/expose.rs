//! `virtctl expose`: a Service for ports of a machine. The Service is planned purely, then created.

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::kubevirt::constants::label;
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceSpec,
};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// Expose a virtual machine's ports as a Service.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Without --port, the ports the machine's interfaces declare are exposed.

Example:
  virtctl expose vm demo --name=demo-ssh --port=22 --type=NodePort")]
pub(crate) struct Args {
    /// vm, vmi or vmirs.
    #[arg(value_name = "vm|vmi|vmirs")]
    kind: String,
    /// Name of the machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the Service.
    #[arg(long)]
    name: String,
    /// Port of the Service.
    #[arg(long)]
    port: Option<u16>,
    /// Port of the machine, by number or name [default: --port].
    #[arg(long)]
    target_port: Option<String>,
    /// Name of the port.
    #[arg(long)]
    port_name: Option<String>,
    /// Protocol: TCP or UDP.
    #[arg(long, default_value = "TCP")]
    protocol: String,
    /// Type of the Service: ClusterIP, NodePort or LoadBalancer.
    #[arg(long = "type", default_value = "ClusterIP")]
    service_type: String,
    /// Address of the Service; None makes it headless [default: any].
    #[arg(long)]
    cluster_ip: Option<String>,
    /// Further address the Service is reached at.
    #[arg(long)]
    external_ip: Option<String>,
    /// Families: IPv4, IPv6, or both with a comma, the preferred first.
    #[arg(long)]
    ip_family: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack.
    #[arg(long)]
    ip_family_policy: Option<String>,
}

/// What can be exposed.
#[derive(Debug)]
enum Exposed {
    Vm(Box<VirtualMachine>),
    Vmi(Box<VirtualMachineInstance>),
    ReplicaSet(Box<VirtualMachineInstanceReplicaSet>),
}

impl Exposed {
    fn spec(&self) -> Option<&VirtualMachineInstanceSpec> {
        match self {
            Self::Vm(vm) => vm.spec.template.spec.as_deref(),
            Self::Vmi(vmi) => Some(&vmi.spec),
            Self::ReplicaSet(set) => set.spec.template.spec.as_deref(),
        }
    }

    /// Labels that select the pods.
    fn selector(&self, name: &str) -> Result<BTreeMap<String, String>, Fault> {
        match self {
            // Not the label vm.kubevirt.io/name: it is the host name, which several machines may share.
            Self::Vm(_) | Self::Vmi(_) => Ok(BTreeMap::from([(label::VMI_ID.to_owned(), instance_id(name))])),
            Self::ReplicaSet(set) => {
                let selector = &set.spec.selector;
                if selector.match_expressions.as_ref().is_some_and(|expressions| !expressions.is_empty()) {
                    return Err(Fault::new(format!("cannot expose VMIRS {name}"))
                        .because("its selector has match expressions, which a Service cannot have"));
                }
                selector.match_labels.clone().filter(|labels| !labels.is_empty()).ok_or_else(|| {
                    Fault::new(format!("cannot expose VMIRS {name}")).because("its selector has no labels")
                })
            }
        }
    }

    /// The ports its interfaces declare.
    fn ports(&self) -> Vec<Value> {
        let interfaces = self.spec().map(|spec| spec.domain.devices.interfaces.as_slice()).unwrap_or_default();
        let declared = interfaces.iter().flat_map(|interface| &interface.ports).enumerate();
        declared
            .map(|(index, port)| {
                let name = port.name.clone().unwrap_or_else(|| format!("port-{}", index + 1));
                json!({ "name": name, "port": port.port, "protocol": port.protocol.as_deref().unwrap_or("TCP") })
            })
            .collect()
    }
}

/// One of `known`, in any case.
fn one_of(flag: &str, text: &str, known: &[&'static str]) -> Result<&'static str, Fault> {
    known.iter().copied().find(|word| word.eq_ignore_ascii_case(text)).ok_or_else(|| {
        Fault::usage(format!("--{flag} cannot be {text:?}")).because(format!("it is one of {}", known.join(", ")))
    })
}

/// The Service for `exposed`.
fn service(args: &Args, exposed: &Exposed) -> Result<Value, Fault> {
    let protocol = one_of("protocol", &args.protocol, &["TCP", "UDP"])?;
    let service_type = one_of("type", &args.service_type, &["ClusterIP", "NodePort", "LoadBalancer"])?;
    let ports = match args.port {
        Some(0) => return Err(Fault::usage("--port cannot be 0")),
        Some(port) => {
            let mut one = json!({ "port": port, "protocol": protocol });
            match args.target_port.as_deref().map(|text| (text, text.parse::<u16>())) {
                Some((_, Ok(number))) => one["targetPort"] = json!(number),
                Some((name, Err(_))) => one["targetPort"] = json!(name),
                None => one["targetPort"] = json!(port),
            }
            if let Some(name) = &args.port_name {
                one["name"] = json!(name);
            }
            vec![one]
        }
        None => exposed.ports(),
    };
    if ports.is_empty() {
        return Err(Fault::usage("which port to expose is not known")
            .because("no --port was given and the machine's interfaces declare none"));
    }
    let mut spec = json!({ "ports": ports, "selector": exposed.selector(&args.machine)?, "type": service_type });
    if let Some(address) = &args.cluster_ip {
        spec["clusterIP"] = json!(address);
    }
    if let Some(address) = &args.external_ip {
        spec["externalIPs"] = json!([address]);
    }
    if let Some(text) = &args.ip_family {
        let families = text
            .split(',')
            .map(|word| one_of("ip-family", word.trim(), &["IPv4", "IPv6"]))
            .collect::<Result<Vec<_>, _>>()?;
        spec["ipFamilies"] = json!(families);
    }
    if let Some(text) = &args.ip_family_policy {
        let known = ["SingleStack", "PreferDualStack", "RequireDualStack"];
        spec["ipFamilyPolicy"] = json!(one_of("ip-family-policy", text, &known)?);
    }
    Ok(json!({ "metadata": { "name": args.name }, "spec": spec }))
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let kind = args.kind.to_lowercase();
    let cluster = globals.cluster().await?;
    let (client, namespace) = (cluster.client, cluster.namespace);
    let what = format!("cannot expose {kind} {namespace}/{}", args.machine);
    let failed = |error: kube::Error| Fault::api(what.clone(), &error);
    let exposed = match (Kind::parse(&kind), kind.as_str()) {
        (Some(Kind::Vm), _) => {
            let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), &namespace);
            Exposed::Vm(Box::new(vms.get(&args.machine).await.map_err(failed)?))
        }
        (Some(Kind::Vmi), _) => {
            let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &namespace);
            Exposed::Vmi(Box::new(vmis.get(&args.machine).await.map_err(failed)?))
        }
        (None, "vmirs" | "vmirss" | "virtualmachineinstancereplicaset" | "virtualmachineinstancereplicasets") => {
            let sets: Api<VirtualMachineInstanceReplicaSet> = Api::namespaced(client.clone(), &namespace);
            Exposed::ReplicaSet(Box::new(sets.get(&args.machine).await.map_err(failed)?))
        }
        _ => return Err(Fault::usage(format!("{:?} is neither vm, vmi nor vmirs", args.kind))),
    };
    let planned = service(&args, &exposed)?;
    let planned: Service = serde_json::from_value(planned).map_err(|error| Fault::new(what.clone()).because(error))?;
    let services: Api<Service> = Api::namespaced(client, &namespace);
    services.create(&PostParams::default(), &planned).await.map_err(failed)?;
    output::say(&format!("Service {} successfully created for {kind} {}", args.name, args.machine))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn vm() -> Exposed {
        let vm = json!({ "metadata": { "name": "demo" }, "spec": { "template": { "spec": { "domain": { "devices": {
            "interfaces": [{ "name": "default", "masquerade": {}, "ports": [{ "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }] }],
        } } } } } });
        Exposed::Vm(serde_json::from_value(vm).unwrap())
    }

    #[track_caller]
    fn check(options: &str, exposed: &Exposed, expect: Result<Value, &str>) {
        let line = format!("virtctl expose vm demo --name=web {options}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Expose(args) = cli.command else { panic!("not expose") };
        match (service(&args, exposed), expect) {
            (Ok(found), Ok(expect)) => {
                assert_eq!(found["spec"], expect);
                serde_json::from_value::<Service>(found).unwrap();
            }
            (Err(fault), Err(expect)) => assert_eq!(fault.to_string(), expect),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn services() {
        let selector = json!({ "vmi.kubevirt.io/id": "demo" });
        let port = json!([{ "port": 8080, "protocol": "TCP", "targetPort": 80 }]);
        check(
            "--port=8080 --target-port=80",
            &vm(),
            Ok(json!({ "ports": port, "selector": selector, "type": "ClusterIP" })),
        );
        let port = json!([{ "name": "n", "port": 53, "protocol": "UDP", "targetPort": "dns" }]);
        check(
            "--port=53 --target-port=dns --port-name=n --protocol=udp --type=NodePort --cluster-ip=10.96.0.7 \
             --external-ip=192.0.2.1 --ip-family=ipv6,ipv4 --ip-family-policy=preferdualstack",
            &vm(),
            Ok(json!({
                "ports": port, "selector": selector, "type": "NodePort", "clusterIP": "10.96.0.7",
                "externalIPs": ["192.0.2.1"], "ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack",
            })),
        );
    }

    #[test]
    fn ports_are_those_the_machine_declares() {
        let ports = json!([
            { "name": "port-1", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" },
        ]);
        let selector = json!({ "vmi.kubevirt.io/id": "demo" });
        check("", &vm(), Ok(json!({ "ports": ports, "selector": selector, "type": "ClusterIP" })));
        let silent = Exposed::Vmi(serde_json::from_value(json!({ "spec": { "domain": {} } })).unwrap());
        check(
            "",
            &silent,
            Err(
                "error: which port to expose is not known: no --port was given and the machine's interfaces declare none",
            ),
        );
    }

    #[test]
    fn mistakes() {
        check("--port=1 --protocol=SCTP", &vm(), Err("error: --protocol cannot be \"SCTP\": it is one of TCP, UDP"));
        check(
            "--port=1 --type=ExternalName",
            &vm(),
            Err("error: --type cannot be \"ExternalName\": it is one of ClusterIP, NodePort, LoadBalancer"),
        );
        check("--port=0", &vm(), Err("error: --port cannot be 0"));
    }

    #[test]
    fn a_set_is_selected_by_its_labels() {
        let set = |selector: Value| -> Exposed {
            let set = json!({ "spec": { "selector": selector, "template": { "spec": { "domain": {} } } } });
            Exposed::ReplicaSet(serde_json::from_value(set).unwrap())
        };
        let labelled = set(json!({ "matchLabels": { "app": "a" } })).selector("s").unwrap();
        assert_eq!(labelled, BTreeMap::from([("app".to_owned(), "a".to_owned())]));
        let expressions = json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }] });
        assert!(set(expressions).selector("s").unwrap_err().to_string().contains("match expressions"));
    }
}
