//! nginx: files by HTTP and HTTPS, behind a password, after a redirection, and slowly.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{HOST, Program, certificate, free_port};

/// Who is let in below `/private/`.
pub const USER: &str = "reader";
/// By this password.
pub const PASSWORD: &str = "open sesame";

/// A web server.
pub struct Web {
    _program: Program,
    dir: TempDir,
    port: u16,
    secure: u16,
    /// What those must trust who ask it by HTTPS.
    pub certificate: String,
}

impl Web {
    /// Starts it, with no file.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("www"))?;
        let (port, secure) = (free_port(HOST)?, free_port(HOST)?);
        let (certificate, key) = certificate(dir.path())?;
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("users"), format!("{USER}:{{PLAIN}}{PASSWORD}\n"))?;
        let (www, key, trusted) = (at("www"), key.display(), certificate.display());
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};\n", at(kind)))
            .concat();
        let config = format!(
            "daemon off; master_process off; pid {pid}; error_log {errors};
             events {{ worker_connections 256; }}
             http {{
                 access_log off; {temporary}
                 server {{
                     listen {HOST}:{port}; listen {HOST}:{secure} ssl;
                     ssl_certificate {trusted}; ssl_certificate_key {key};
                     root {www};
                     location /private/ {{ alias {www}/; auth_basic e2e; auth_basic_user_file {users}; }}
                     location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
                     location /slow/ {{ alias {www}/; limit_rate 256k; }}
                     location /slower/ {{ alias {www}/; limit_rate 64k; }}
                 }}
             }}\n",
            pid = at("pid"),
            errors = at("errors"),
            users = at("users"),
        );
        std::fs::write(at("nginx.conf"), config)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir.path()).args(["-e", &at("errors"), "-c", &at("nginx.conf")]);
        let program = Program::start(&mut command, HOST, &[port, secure])?;
        let certificate = std::fs::read_to_string(certificate)?;
        Ok(Self { _program: program, dir, port, secure, certificate })
    }

    /// Where a file lies that it serves.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("www").join(name)
    }

    /// Gives it a file.
    pub fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        std::fs::write(self.path(name), content).with_context(|| format!("cannot write {name}"))
    }

    /// A file's address.
    pub fn url(&self, path: &str) -> String {
        format!("http://{HOST}:{}/{path}", self.port)
    }

    /// The same by HTTPS.
    pub fn secure_url(&self, path: &str) -> String {
        format!("https://{HOST}:{}/{path}", self.secure)
    }
}
