//! What a backup looks like: text, one JSON document a line, so that `jq` reads it as well as we do.
//!
//! ```text
//! {"ferrovirt":"backup","format":1,"version":"v0.1.0","made":"…","revision":1234,"objects":2,"nodes":["node1"]}
//! {"file":"ca.key","text":"-----BEGIN PRIVATE KEY-----…"}                      keys and certificates
//! {"resource":"pods","namespace":"default","name":"a","object":{…}}            objects
//! {"sha256":"…"}                                                               of all lines before
//! ```

use std::io::{BufRead, Read, Write};
use std::sync::Arc;

use kube_apiserver::store::Object;
use kube_apiserver::store::archive;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The format written, and the newest one read.
const FORMAT: u64 = 1;
/// No object and no key comes near this.
const LONGEST: u64 = 64 << 20;

/// What a backup says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) version: String,
    pub(crate) made: String,
    pub(crate) revision: u64,
    pub(crate) objects: usize,
    pub(crate) nodes: Vec<String>,
}

/// A whole backup.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(crate) head: Head,
    /// Names and texts of the keys and certificates.
    pub(crate) files: Vec<(String, String)>,
    pub(crate) objects: Vec<Arc<Object>>,
}

/// Why a file is no backup that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    #[error("it is not a backup made by `ferrovirt backup`")]
    Foreign,
    #[error("it has format {0}, and this program reads formats up to {FORMAT}; restore it with the newer program")]
    Newer(u64),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Writes lines and remembers their checksum.
pub(crate) struct Writer<W: Write> {
    out: W,
    sum: Sha256,
}

impl<W: Write> Writer<W> {
    pub(crate) fn begin(out: W, head: &Head) -> std::io::Result<Self> {
        let mut writer = Self { out, sum: Sha256::new() };
        let text = json!({"format": FORMAT, "version": head.version, "made": head.made, "revision": head.revision,
            "objects": head.objects, "nodes": head.nodes})
        .to_string();
        // First, so that the file is known by its first bytes.
        writer.line(&format!("{{\"ferrovirt\":\"backup\",{}", &text[1..]))?;
        Ok(writer)
    }

    pub(crate) fn file(&mut self, name: &str, text: &str) -> std::io::Result<()> {
        self.line(&json!({"file": name, "text": text}).to_string())
    }

    /// A line without its end.
    pub(crate) fn line(&mut self, line: &str) -> std::io::Result<()> {
        for part in [line.as_bytes(), b"\n"] {
            self.sum.update(part);
            self.out.write_all(part)?;
        }
        Ok(())
    }

    pub(crate) fn end(mut self) -> std::io::Result<W> {
        let sum = hex(&self.sum.clone().finalize());
        self.line(&json!({"sha256": sum}).to_string())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads all of it, and believes nothing before the checksum was right.
pub(crate) fn read(mut from: impl BufRead) -> Result<Backup, FileError> {
    let mut sum = Sha256::new();
    let first = next(&mut from)?.ok_or(FileError::Foreign)?;
    let head = head(&first)?;
    sum.update(&first);
    let mut backup = Backup { head, files: Vec::new(), objects: Vec::new() };
    loop {
        let Some(line) = next(&mut from)? else { return Err(FileError::Damaged("its end is missing")) };
        if let Some(stated) = line.strip_prefix("{\"sha256\":\"").and_then(|rest| rest.strip_suffix("\"}\n")) {
            if stated != hex(&sum.finalize()) {
                return Err(FileError::Damaged("its checksum is that of another text"));
            }
            break;
        }
        sum.update(&line);
        let odd = || FileError::Damaged("a line of it is neither a key nor an object");
        if line.starts_with("{\"file\":") {
            let value: Value = serde_json::from_str(&line).map_err(|_| odd())?;
            let text = |key: &str| value[key].as_str().map(str::to_owned).ok_or_else(odd);
            backup.files.push((text("file")?, text("text")?));
        } else {
            backup.objects.push(Arc::new(archive::parse(&line).map_err(|_| odd())?));
        }
    }
    if next(&mut from)?.is_some() {
        return Err(FileError::Damaged("something follows its end"));
    }
    if backup.objects.len() != backup.head.objects {
        return Err(FileError::Damaged("it does not hold as many objects as it says"));
    }
    // They become names in a directory.
    if backup.files.iter().any(|(name, _)| name.is_empty() || name.starts_with('.') || name.contains(['/', '\0'])) {
        return Err(FileError::Damaged("a key has an impossible name"));
    }
    Ok(backup)
}

fn head(line: &str) -> Result<Head, FileError> {
    let value: Value = serde_json::from_str(line).map_err(|_| FileError::Foreign)?;
    if value["ferrovirt"] != "backup" {
        return Err(FileError::Foreign);
    }
    match value["format"].as_u64() {
        Some(FORMAT) => {}
        Some(format) if format > FORMAT => return Err(FileError::Newer(format)),
        _ => return Err(FileError::Foreign),
    }
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let nodes = value["nodes"].as_array().into_iter().flatten();
    Ok(Head {
        version: text("version"),
        made: text("made"),
        revision: value["revision"].as_u64().ok_or(FileError::Foreign)?,
        objects: value["objects"].as_u64().and_then(|n| n.try_into().ok()).ok_or(FileError::Foreign)?,
        nodes: nodes.filter_map(|node| node.as_str().map(str::to_owned)).collect(),
    })
}

/// A line with its end; None after the last.
fn next(from: &mut impl BufRead) -> Result<Option<String>, FileError> {
    let mut bytes = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut bytes).map_err(FileError::Read)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let whole = bytes.ends_with(b"\n");
    match String::from_utf8(bytes) {
        Ok(line) if whole => Ok(Some(line)),
        // The first line of a foreign file is foreign; any other one was cut.
        Ok(_) => Err(FileError::Damaged("a line of it has no end")),
        Err(_) => Err(FileError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Vec<u8> {
        let nodes = vec!["node1".to_owned()];
        let head = Head { version: "v1".into(), made: "today".into(), revision: 9, objects: 1, nodes };
        let mut writer = Writer::begin(Vec::new(), &head).unwrap();
        writer.file("ca.key", "secret\n").unwrap();
        let object = r#"{"resource":"pods","namespace":"n","name":"a","object":{"metadata":{"resourceVersion":"7"}}}"#;
        writer.line(object).unwrap();
        writer.end().unwrap()
    }

    #[track_caller]
    fn check(bytes: &[u8], expect: &str) {
        assert_eq!(read(bytes).unwrap_err().to_string(), expect);
    }

    #[test]
    fn a_backup_is_read_back() {
        let backup = read(&*example()).unwrap();
        assert_eq!((backup.head.revision, backup.head.nodes), (9, vec!["node1".to_owned()]));
        assert_eq!(backup.files, [("ca.key".to_owned(), "secret\n".to_owned())]);
        assert_eq!(backup.objects[0].revision, 7);
    }

    #[test]
    fn no_other_file_is() {
        let good = example();
        check(b"", "it is not a backup made by `ferrovirt backup`");
        check(b"apiVersion: v1\n", "it is not a backup made by `ferrovirt backup`");
        check(b"{\"kind\":\"List\"}\n", "it is not a backup made by `ferrovirt backup`");
        check(&[&b"\xff\xfe\n"[..], &good].concat(), "it is not a backup made by `ferrovirt backup`");
        let newer = String::from_utf8(good.clone()).unwrap().replace("\"format\":1", "\"format\":2");
        let sentence = "it has format 2, and this program reads formats up to 1; restore it with the newer program";
        check(newer.as_bytes(), sentence);
        let other = String::from_utf8(good.clone()).unwrap().replace("secret", "sekret");
        check(other.as_bytes(), "it is damaged: its checksum is that of another text");
        check(&[&good[..], b"{}\n"].concat(), "it is damaged: something follows its end");
        for cut in 1..good.len() {
            assert!(read(&good[..cut]).is_err(), "cut at {cut}");
        }
    }
}
