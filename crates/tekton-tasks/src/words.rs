//! Texts of params: a param that nobody gave is an empty text. Pure.

use std::path::{Path, PathBuf};

use crate::Error;

/// The value, unless it is empty.
pub(crate) fn given(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// `true`, or `false`, which is the default.
pub(crate) fn truth(name: &'static str, text: &str) -> Result<bool, Error> {
    match given(text) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Error::param(name, format!("{other:?} is neither true nor false"))),
    }
}

/// `KEY:VALUE` each; the value may hold further colons.
pub(crate) fn pairs(name: &'static str, all: &[String]) -> Result<Vec<(String, String)>, Error> {
    let given = all.iter().filter(|text| !text.trim().is_empty());
    given
        .map(|text| {
            let (key, value) = text
                .split_once(':')
                .ok_or_else(|| Error::param(name, format!("{text:?} has no colon: write it as KEY:VALUE")))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

/// Where results are written; nowhere for who asks for none.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Results {
    /// File for the name of what was made
    #[arg(long, value_name = "FILE")]
    name_result: Option<PathBuf>,
    /// File for its namespace
    #[arg(long, value_name = "FILE")]
    namespace_result: Option<PathBuf>,
}

impl Results {
    /// Writes both.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn write(&self, name: &str, namespace: &str) -> Result<(), Error> {
        for (path, text) in [(&self.name_result, name), (&self.namespace_result, namespace)] {
            if let Some(path) = path {
                write(path, text)?;
            }
        }
        Ok(())
    }
}

/// Writes one result.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_that_are_not_given_are_empty() {
        assert_eq!((given(" "), given(" a ")), (None, Some("a")));
        assert!(!truth("p", "").unwrap() && truth("p", "true").unwrap());
        assert!(truth("p", "yes").unwrap_err().to_string().contains("param p: \"yes\""));
        let all = ["user:fedora".to_owned(), String::new(), "url:http://a:1".to_owned()];
        let expect = [("user", "fedora"), ("url", "http://a:1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs("p", &all).unwrap(), expect);
        assert!(pairs("p", &["x".to_owned()]).is_err());
    }
}
