//! Values of options that carry several parameters: `name:value,name:value`.

use std::collections::BTreeMap;

use meta::quantity::Amount;

use crate::fault::Fault;

/// A mistake in the value of `--flag`.
pub(super) fn wrong(flag: &str, why: impl std::fmt::Display) -> Fault {
    Fault::usage(format!("failed to parse \"--{flag}\" flag")).because(why)
}

/// The parameters of one value.
#[derive(Debug)]
pub(super) struct Params<'a> {
    flag: &'a str,
    held: BTreeMap<&'a str, &'a str>,
}

impl<'a> Params<'a> {
    /// Parses `text`.
    pub(super) fn parse(flag: &'a str, text: &'a str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(wrong(flag, "params may not be empty"));
        }
        let mut held = BTreeMap::new();
        for part in text.split(',') {
            let (name, value) = part
                .split_once(':')
                .ok_or_else(|| wrong(flag, format!("params need to have at least one colon: {part}")))?;
            if name.is_empty() || value.is_empty() {
                return Err(wrong(flag, format!("params need a name before and a value after the colon: {part}")));
            }
            if held.insert(name, value).is_some() {
                return Err(wrong(flag, format!("param {name} was given twice")));
            }
        }
        Ok(Self { flag, held })
    }

    /// Refuses parameters that are not in `known`.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Fault> {
        let unknown: Vec<String> = self
            .held
            .iter()
            .filter(|(name, _)| !known.contains(name))
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let fault = self.wrong(format!("unknown param(s): {}", unknown.join(",")));
        Err(fault.hint(format!("known are: {}", known.join(", "))))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.held.get(name).copied()
    }

    /// A parameter that must be there; `why` if it is not.
    pub(super) fn need(&self, name: &str, why: &str) -> Result<&'a str, Fault> {
        self.get(name).ok_or_else(|| self.wrong(why))
    }

    pub(super) fn boot_order(&self) -> Result<Option<u64>, Fault> {
        match self.get("bootorder").map(|text| (text, text.parse())) {
            None => Ok(None),
            Some((_, Ok(0))) => Err(self.wrong("bootorder must be greater than 0")),
            Some((_, Ok(number))) => Ok(Some(number)),
            Some((text, Err(_))) => Err(self.wrong(format!("bootorder {text:?} is not a number"))),
        }
    }

    pub(super) fn size(&self) -> Result<Option<&'a str>, Fault> {
        let Some(text) = self.get("size") else { return Ok(None) };
        let parsed = text.parse::<Amount>();
        parsed.map_err(|error| self.wrong(format!("size {text:?}: {error}")))?;
        Ok(Some(text))
    }

    /// `src`, as a namespace and a name.
    pub(super) fn source(&self) -> Result<(Option<&'a str>, &'a str), Fault> {
        let source = self.need("src", "src must be specified")?;
        prefixed(source).map_err(|why| self.wrong(format!("src invalid: {why}")))
    }

    /// `src`, of something in the namespace of the VM.
    pub(super) fn own_source(&self, of: &str) -> Result<&'a str, Fault> {
        match self.source()? {
            (None, name) => Ok(name),
            (Some(_), name) => Err(self.wrong(format!("not allowed to specify namespace of {of} \"{name}\""))),
        }
    }

    pub(super) fn wrong(&self, why: impl std::fmt::Display) -> Fault {
        wrong(self.flag, why)
    }
}

/// `[prefix/]name`.
pub(super) fn prefixed(text: &str) -> Result<(Option<&str>, &str), String> {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [name] if !name.is_empty() => Ok((None, name)),
        [_, ""] | [""] => Err("name cannot be empty".to_owned()),
        [prefix, name] if !prefix.is_empty() => Ok((Some(prefix), name)),
        _ => Err(format!("invalid count {} of slashes in prefix/name", text.matches('/').count())),
    }
}

/// Whether `name` can name a volume.
pub(super) fn label(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 63 && name.starts_with(edge) && name.ends_with(edge) && name.chars().all(|c| edge(c) || c == '-')
}
