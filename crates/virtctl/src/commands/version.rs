//! `virtctl version`: of this program and of the cluster's virtual machine support.

use std::process::ExitCode;

use http::Request;
use serde_json::Value;

use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;

/// Print the versions of client and server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only that of this program.
    #[arg(long, short, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    client: bool,
}

fn own() -> String {
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    format!("Client Version: version.Info{{GitVersion:\"v{}\", Platform:\"{platform}\"}}", env!("CARGO_PKG_VERSION"))
}

fn server(info: &Value) -> String {
    let field = |name: &str| info.get(name).and_then(Value::as_str).unwrap_or_default();
    format!(
        "Server Version: version.Info{{GitVersion:\"{}\", Platform:\"{}\"}}",
        field("gitVersion"),
        field("platform")
    )
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    output::say(&own())?;
    if args.client {
        return Ok(ExitCode::SUCCESS);
    }
    let what = "cannot get the server's version";
    let cluster = globals.cluster().await?;
    let request = Request::get("/apis/subresources.kubevirt.io/v1/version")
        .body(Vec::new())
        .map_err(|error| Fault::new(what).because(error))?;
    let info: Value = cluster.client.request(request).await.map_err(|error| Fault::api(what, &error))?;
    output::say(&server(&info))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_lines() {
        assert!(own().starts_with("Client Version: version.Info{GitVersion:\"v"));
        let info = json!({ "gitVersion": "v1.2.3", "platform": "linux/x86_64" });
        assert_eq!(server(&info), r#"Server Version: version.Info{GitVersion:"v1.2.3", Platform:"linux/x86_64"}"#);
    }
}
