//! `virtctl template convert`: the VirtualMachineTemplate that says what a Template of OpenShift says.

use std::path::PathBuf;

use api::template::openshift;
use http::Method;
use serde_json::{Value, json};

use crate::commands::document::{print, read, send};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};

/// Print the VirtualMachineTemplate that says what a Template of OpenShift says.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl template convert my-template -n staging | kubectl apply -f -
  virtctl template convert --file template.yaml -o json")]
pub(crate) struct Args {
    /// Name of the Template.
    #[arg(value_name = "TEMPLATE")]
    template: Option<String>,
    /// Name of the Template, as well.
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["template", "file"])]
    name: Option<String>,
    /// File with the Template; - is standard input.
    #[arg(long, short, value_name = "FILE", conflicts_with = "template")]
    file: Option<PathBuf>,
    /// yaml or json.
    #[arg(long, short, default_value = "yaml", value_parser = ["yaml", "json"])]
    output: String,
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    let template = match (args.template.as_deref().or(args.name.as_deref()), &args.file) {
        (Some(name), _) => {
            let cluster = globals.cluster().await?;
            let what = format!("cannot get the Template {}/{name}", cluster.namespace);
            let at = format!("/apis/template.openshift.io/v1/namespaces/{}/templates/{name}", cluster.namespace);
            let mut found = send(&cluster, &what, Method::GET, &at, &Value::Null).await?;
            found["kind"] = json!("Template");
            found
        }
        (None, Some(file)) => read(file)?,
        (None, None) => {
            return Err(Fault::usage("which Template is not said").hint("name it, or give its file with --file"));
        }
    };
    let converted = openshift::convert(&template);
    let converted = converted.map_err(|refusal| Fault::new("the Template cannot be converted").because(refusal))?;
    print(&converted, &args.output)
}
