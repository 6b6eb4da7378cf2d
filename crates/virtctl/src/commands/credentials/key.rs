//! A public key as it is written: in a file, on the command line, and in the lines of a Secret.

use std::path::PathBuf;

use crate::fault::Fault;

/// Where the key is.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Source {
    /// File with the public key.
    #[arg(long, short, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,
    /// The public key itself.
    #[arg(long, value_name = "KEY")]
    value: Option<String>,
}

impl Source {
    /// The key, read before anything is asked of a cluster.
    pub(super) fn read(&self) -> Result<String, Fault> {
        let text = match (&self.value, &self.file) {
            (Some(value), _) => value.clone(),
            (None, Some(file)) => std::fs::read_to_string(file)
                .map_err(|error| Fault::new(format!("cannot read the key {}", file.display())).because(error))?,
            (None, None) => return Err(Fault::usage("one of --file, or --value must be specified")),
        };
        let text = text.trim();
        if text.contains("PRIVATE KEY") {
            return Err(Fault::usage("this is a private key").hint("the public one is in the file that ends in .pub"));
        }
        if keys(text).next().is_none() {
            return Err(Fault::usage("there is no key in what was given"));
        }
        Ok(text.to_owned())
    }
}

/// The lines of `text` that are keys.
pub(super) fn keys(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What makes a line one key and no other: its type and the word behind it, whatever the options and the comment are.
fn essence(line: &str) -> Option<(&str, &str)> {
    let is_type = |word: &str| ["ssh-", "ecdsa-", "sk-"].iter().any(|start| word.starts_with(start));
    let mut words = line.split_whitespace().skip_while(|word| !is_type(word));
    Some((words.next()?, words.next()?))
}

/// Whether both lines are the same key.
pub(super) fn is_same(line: &str, other: &str) -> bool {
    match (essence(line), essence(other)) {
        (Some(one), Some(other)) => one == other,
        _ => line.trim() == other.trim(),
    }
}

/// Whether `text` has every key of `wanted`.
pub(super) fn has_all(text: &str, wanted: &str) -> bool {
    keys(wanted).all(|key| keys(text).any(|line| is_same(line, key)))
}

/// `text` without the keys of `unwanted`; None where it has none of them.
pub(super) fn without(text: &str, unwanted: &str) -> Option<String> {
    let goes = |line: &str| keys(unwanted).any(|key| is_same(line, key));
    let kept: Vec<&str> = text.lines().filter(|line| !goes(line)).collect();
    (kept.len() < text.lines().count()).then(|| kept.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3Nza me@here";

    #[test]
    fn a_key_is_the_same_whatever_its_comment_and_options_are() {
        let check = |line: &str, expect: bool| assert_eq!(is_same(line, ONE), expect, "{line}");
        check("ssh-ed25519 AAAAC3Nza", true);
        check("  ssh-ed25519  AAAAC3Nza  somebody else\r", true);
        check("no-pty,command=\"ls -l\" ssh-ed25519 AAAAC3Nza me@here", true);
        check("ssh-ed25519 AAAAC3Nzb me@here", false);
        check("ssh-rsa AAAAC3Nza me@here", false);
        check("ssh-ed25519", false);
        assert!(is_same("strange", " strange "));
    }

    #[test]
    fn only_the_keys_that_are_not_wanted_go() {
        let text = "# mine\nssh-rsa BBB\nssh-ed25519 AAAAC3Nza old comment\n";
        assert_eq!(without(text, ONE).as_deref(), Some("# mine\nssh-rsa BBB"));
        assert_eq!(without(text, "ssh-rsa CCC"), None);
        assert_eq!(without(ONE, ONE).as_deref(), Some(""));
        assert!(has_all(text, "ssh-rsa BBB x\n\nssh-ed25519 AAAAC3Nza"));
        assert!(!has_all(text, "ssh-rsa BBB x\nssh-rsa CCC"));
    }

    #[test]
    fn what_is_no_public_key_is_refused() {
        let check = |value: &str, expect: &str| {
            let source = Source { file: None, value: Some(value.to_owned()) };
            let said = source.read().unwrap_or_else(|fault| fault.to_string());
            assert!(said.starts_with(expect), "{said}");
        };
        check(" ssh-rsa AAA me\n", "ssh-rsa AAA me");
        check("-----BEGIN OPENSSH PRIVATE KEY-----\nx", "error: this is a private key");
        check("  \n# nothing\n", "error: there is no key in what was given");
        let none = Source::default().read().unwrap_err();
        assert_eq!(none.to_string(), "error: one of --file, or --value must be specified");
    }
}
