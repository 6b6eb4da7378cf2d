//! `virtctl template process`: the machine that comes of a template, printed or created.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use api::template::{self, GROUP, PLURAL, SUBRESOURCES, Spec, VERSIONS};
use http::Method;
use rand::Rng;
use serde_json::{Value, json};

use crate::commands::document::{print, read, send};
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;

/// Print the virtual machine that comes of a template, or create it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl template process fedora-server-small -n kubevirt-hyperconverged --print-params
  virtctl template process my-template -p NAME=web -p CORES=2 | kubectl apply -f -
  virtctl template process my-template -p NAME=web --create
  virtctl template process --file template.yaml --params-file params.yaml -o json")]
pub(crate) struct Args {
    /// Name of the template.
    #[arg(value_name = "TEMPLATE")]
    template: Option<String>,
    /// Name of the template, as well.
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["template", "file"])]
    name: Option<String>,
    /// File with the template; - is standard input.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["template", "local", "create"])]
    file: Option<PathBuf>,
    /// A parameter, as NAME=VALUE. May be given several times.
    #[arg(long, short, value_name = "NAME=VALUE", conflicts_with = "params_file")]
    param: Vec<String>,
    /// File with parameters: a mapping in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    params_file: Option<PathBuf>,
    /// yaml or json.
    #[arg(long, short, default_value = "yaml", value_parser = ["yaml", "json"])]
    output: String,
    /// Fill in parameters here, and not in the cluster.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    local: bool,
    /// Create the virtual machine in the namespace of the template.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false,
        conflicts_with_all = ["local", "print_params"])]
    create: bool,
    /// Print the parameters of the template, and nothing else.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    print_params: bool,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let given = parameters(&args)?;
    let name = args.template.as_deref().or(args.name.as_deref());
    let (machine, message) = match (name, &args.file) {
        (None, None) => {
            return Err(Fault::usage("which template is not said").hint("name it, or give its file with --file"));
        }
        (None, Some(file)) => {
            let spec = spec(&read(file)?)?;
            if args.print_params {
                return print(&json!(spec.parameters), &args.output);
            }
            here(&spec, &given)?
        }
        (Some(name), _) => {
            let cluster = globals.cluster().await?;
            if args.print_params {
                return print(&json!(spec(&fetched(&cluster, name).await?)?.parameters), &args.output);
            }
            let (machine, message) = match args.local {
                true => here(&spec(&fetched(&cluster, name).await?)?, &given)?,
                false => there(&cluster, name, if args.create { "create" } else { "process" }, &given).await?,
            };
            if args.create {
                let made = machine["metadata"]["name"].as_str().unwrap_or_default();
                output::say(&format!("virtualmachine.kubevirt.io/{made} created"))?;
                return tell(&message);
            }
            (machine, message)
        }
    };
    tell(&message)?;
    print(&machine, &args.output)
}

/// What the template says to its user: beside the machine, which others read.
#[expect(clippy::print_stderr, reason = "standard output is for the machine")]
fn tell(message: &str) -> Outcome {
    if !message.is_empty() {
        eprintln!("{message}");
    }
    Ok(ExitCode::SUCCESS)
}

fn parameters(args: &Args) -> Result<BTreeMap<String, String>, Fault> {
    if let Some(file) = &args.params_file {
        let wrong = || Fault::usage(format!("{} is no mapping of parameters", file.display()));
        let Value::Object(fields) = read(file)? else { return Err(wrong()) };
        let text = |(name, value): (String, Value)| match value {
            Value::String(text) => Ok((name, text)),
            Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
            _ => Err(wrong().because(format!("{name} is neither a text nor a number"))),
        };
        return fields.into_iter().map(text).collect();
    }
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Fault::usage(format!("--param is {text:?}")).hint("write it as NAME=VALUE")),
    };
    args.param.iter().map(pair).collect()
}

fn spec(template: &Value) -> Result<Spec, Fault> {
    let what = "this is no VirtualMachineTemplate";
    if template["kind"] != "VirtualMachineTemplate" {
        return Err(Fault::new(what).because(format!("its kind is {}", template["kind"])));
    }
    serde_json::from_value(template["spec"].clone()).map_err(|error| Fault::new(what).because(error))
}

fn here(spec: &Spec, given: &BTreeMap<String, String>) -> Result<(Value, String), Fault> {
    let mut random = rand::rng();
    let done = template::process(spec, given, &mut |below| random.random_range(0..below));
    let done = done.map_err(|refusal| Fault::new("no machine comes of the template").because(refusal))?;
    Ok((done.machine, done.message))
}

fn address(cluster: &Cluster, group: &str, name: &str) -> String {
    format!("/apis/{group}/{}/namespaces/{}/{PLURAL}/{name}", VERSIONS[0], cluster.namespace)
}

async fn fetched(cluster: &Cluster, name: &str) -> Result<Value, Fault> {
    let what = format!("cannot get the template {}/{name}", cluster.namespace);
    let mut found = send(cluster, &what, Method::GET, &address(cluster, GROUP, name), &Value::Null).await?;
    found["kind"] = json!("VirtualMachineTemplate");
    Ok(found)
}

async fn there(
    cluster: &Cluster,
    name: &str,
    how: &str,
    given: &BTreeMap<String, String>,
) -> Result<(Value, String), Fault> {
    let what = format!("cannot {how} a machine of the template {}/{name}", cluster.namespace);
    let options = json!({
        "apiVersion": format!("{SUBRESOURCES}/{}", VERSIONS[0]), "kind": "ProcessOptions", "parameters": given,
    });
    let at = format!("{}/{how}", address(cluster, SUBRESOURCES, name));
    let mut done = send(cluster, &what, Method::POST, &at, &options).await?;
    let message = done["message"].as_str().unwrap_or_default().to_owned();
    Ok((done["virtualMachine"].take(), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_pairs() {
        let args = |param: &str| Args { param: vec![param.to_owned()], ..Args::default() };
        let found = parameters(&args("A=b=c")).unwrap();
        assert_eq!(found, BTreeMap::from([("A".to_owned(), "b=c".to_owned())]));
        assert!(parameters(&args("A")).is_err() && parameters(&args("=b")).is_err());
    }

    #[test]
    fn parameters_come_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = dir.path().join("params.yaml");
            std::fs::write(&file, text).unwrap();
            parameters(&Args { params_file: Some(file), ..Args::default() })
        };
        let expect = [("NAME", "web"), ("CORES", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read("NAME: web\nCORES: 2\n").unwrap(), BTreeMap::from(expect));
        assert!(read("NAME: [web]\n").is_err() && read("- NAME\n").is_err());
    }

    #[test]
    fn what_is_no_template_is_said_to_be_none() {
        assert!(spec(&json!({ "kind": "Template" })).is_err());
        let machine = json!({
            "metadata": { "name": "${NAME}" },
            "spec": { "template": { "spec": { "domain": { "devices": {} } } } },
        });
        let good = json!({ "kind": "VirtualMachineTemplate", "spec": {
            "virtualMachine": machine, "parameters": [{ "name": "NAME", "generate": "expression", "from": "vm-[a-z]{4}" }],
        } });
        let (machine, _) = here(&spec(&good).unwrap(), &BTreeMap::new()).ok().unwrap();
        let name = machine["metadata"]["name"].as_str().unwrap();
        assert!(name.len() == 7 && name.starts_with("vm-"), "{name}");
    }
}
