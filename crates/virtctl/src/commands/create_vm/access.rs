//! `--access-cred` and the options of cloud-init: who may log in, and how the guest learns of it.

use std::fs;

use serde_json::{Value, json};

use super::Args;
use crate::commands::params::{Params, wrong};
use crate::fault::Fault;

const NO_CLOUD: &str = "nocloud";
const CONFIG_DRIVE: &str = "configdrive";
const NONE: &str = "none";
const HEADER: &str = "#cloud-config";

/// What the options say of cloud-init, with what access credentials add to it.
#[derive(Debug)]
pub(super) struct CloudInit<'a> {
    args: &'a Args,
    kind: String,
    /// The kind was asked for, by its option or by an access credential.
    asked: bool,
    manage_keys: bool,
}

impl<'a> CloudInit<'a> {
    pub(super) fn of(args: &'a Args) -> Self {
        let kind = args.cloud_init.as_deref().unwrap_or(NO_CLOUD).to_lowercase();
        Self { args, kind, asked: args.cloud_init.is_some(), manage_keys: args.ga_manage_ssh == Some(true) }
    }

    /// One `--access-cred`, as the API has it.
    pub(super) fn credential(&mut self, text: &str) -> Result<Value, Fault> {
        let params = Params::parse("access-cred", text)?;
        params.only(&["type", "src", "method", "user"])?;
        let secret = params.own_source("secret")?;
        let source = json!({ "secret": { "secretName": secret } });
        let word = |name: &str| params.get(name).map(str::to_lowercase);
        let (kind, method) = (word("type"), word("method"));
        match (kind.as_deref().unwrap_or("ssh"), method.as_deref().unwrap_or("ga")) {
            ("ssh", "ga") => {
                let user = params.get("user").or(self.args.user.as_deref()).ok_or_else(|| {
                    params.wrong(
                        "user must be specified with access credential ssh method ga (\"--user\" flag or param \"user\")",
                    )
                })?;
                // Unless it was refused, the agent is allowed to do what it is asked to.
                self.manage_keys = self.args.ga_manage_ssh.unwrap_or(true);
                let way = json!({ "qemuGuestAgent": { "users": [user] } });
                Ok(json!({ "sshPublicKey": { "source": source, "propagationMethod": way } }))
            }
            ("ssh", method @ (NO_CLOUD | CONFIG_DRIVE)) => {
                refuse_user(&params)?;
                if !self.asked {
                    method.clone_into(&mut self.kind);
                    self.asked = true;
                }
                if self.kind != method {
                    return Err(params.wrong(format!(
                        "method param and value passed to --cloud-init have to match: {method} vs. {}",
                        self.kind
                    )));
                }
                let way = if method == NO_CLOUD { json!({ "noCloud": {} }) } else { json!({ "configDrive": {} }) };
                Ok(json!({ "sshPublicKey": { "source": source, "propagationMethod": way } }))
            }
            ("ssh", other) => Err(params.wrong(format!(
                "invalid access credentials ssh method \"{other}\", supported values are: ga, nocloud, configdrive"
            ))),
            ("password", "ga") => {
                refuse_user(&params)?;
                Ok(json!({ "userPassword": { "source": source, "propagationMethod": { "qemuGuestAgent": {} } } }))
            }
            ("password", other) => Err(params
                .wrong(format!("invalid access credentials password method \"{other}\", supported values are: ga"))),
            (other, _) => Err(params
                .wrong(format!("invalid access credential type \"{other}\", supported values are: ssh, password"))),
        }
    }

    /// The source of the cloud-init volume; none when nothing was asked.
    pub(super) fn volume(&self) -> Result<Option<Value>, Fault> {
        let args = self.args;
        let field = match self.kind.as_str() {
            NO_CLOUD => "cloudInitNoCloud",
            CONFIG_DRIVE => "cloudInitConfigDrive",
            NONE => return Ok(None),
            other => {
                return Err(wrong(
                    "cloud-init",
                    format!(
                        "invalid cloud-init data source type \"{other}\", supported values are: nocloud, configdrive, none"
                    ),
                ));
            }
        };
        let mut data = serde_json::Map::new();
        if let Some(network) = &args.cloud_init_network_data {
            data.insert("networkDataBase64".to_owned(), json!(network));
        }
        let mut empty = data.is_empty();
        match &args.cloud_init_user_data {
            Some(user) => {
                data.insert("userDataBase64".to_owned(), json!(user));
                empty = false;
            }
            None => {
                let config = self.config()?;
                empty &= config == HEADER;
                data.insert("userData".to_owned(), json!(config));
            }
        }
        Ok((self.asked || !empty).then(|| json!({ field: data })))
    }

    fn config(&self) -> Result<String, Fault> {
        let mut lines = vec![HEADER.to_owned()];
        if let Some(user) = &self.args.user {
            lines.push(format!("user: {}", scalar(user)));
        }
        if let Some(path) = &self.args.password_file {
            let text = fs::read_to_string(path)
                .map_err(|error| wrong("password-file", format!("{}: {error}", path.display())))?;
            if !text.trim().is_empty() {
                lines.push(format!("password: {}", scalar(text.trim())));
                lines.push("chpasswd: { expire: False }".to_owned());
            }
        }
        if !self.args.ssh_key.is_empty() {
            lines.push("ssh_authorized_keys:".to_owned());
            lines.extend(self.args.ssh_key.iter().map(|key| format!("  - {}", scalar(key))));
        }
        if self.manage_keys {
            lines.push("runcmd:".to_owned());
            lines.push("  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]".to_owned());
        }
        Ok(lines.join("\n"))
    }
}

fn refuse_user(params: &Params<'_>) -> Result<(), Fault> {
    match params.get("user") {
        Some(_) => Err(params.wrong("user cannot be specified with selected access credential type and method")),
        None => Ok(()),
    }
}

/// A word of YAML that reads back as the text it is.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+=@ ".contains(c);
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !text.ends_with(' ')
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_lowercase().as_str());
    // JSON is YAML.
    if word { text.to_owned() } else { json!(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_quoted_where_yaml_needs_it() {
        let check = |text: &str, expect: &str| assert_eq!(scalar(text), expect);
        check("cloud-user", "cloud-user");
        check("ssh-ed25519 AAAAC3Nz/+= me@here", "ssh-ed25519 AAAAC3Nz/+= me@here");
        check("pass: #word", "\"pass: #word\"");
        check("12345", "\"12345\"");
        check("yes", "\"yes\"");
        check("a\nb: c", "\"a\\nb: c\"");
    }
}
