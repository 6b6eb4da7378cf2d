//! Which machine a command is about: `[vm/|vmi/]name[/namespace]` or `name.namespace`, with a user before an `@`.

use crate::fault::Fault;

/// The two kinds a machine is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Vm,
    Vmi,
}

impl Kind {
    /// Any spelling, in any case.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Some(Self::Vm),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Some(Self::Vmi),
            _ => None,
        }
    }

    /// In paths of the API.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Vm => "virtualmachines",
            Self::Vmi => "virtualmachineinstances",
        }
    }

    /// On the command line.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Vmi => "vmi",
        }
    }
}

/// A machine named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
}

fn wrong(text: &str, why: &str) -> Fault {
    Fault::usage(format!("{text:?} names no machine"))
        .because(why)
        .hint("write vm/NAME or vmi/NAME, and /NAMESPACE behind it if it is another one")
}

impl Target {
    /// Parses `type/name[/namespace]`; a bare name is a VMI's.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(wrong(text, "a part is empty"));
        }
        let kind =
            |word: &str| Kind::parse(word).ok_or_else(|| wrong(text, &format!("{word:?} is neither vm nor vmi")));
        let target = |kind, name: &str, namespace: Option<&str>| Self {
            kind,
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
        };
        match parts.as_slice() {
            [name] => match name.split_once('.') {
                Some((name, namespace)) if !name.is_empty() && !namespace.is_empty() => {
                    Ok(target(Kind::Vmi, name, Some(namespace)))
                }
                Some(_) => Err(wrong(text, "a part is empty")),
                None => Ok(target(Kind::Vmi, name, None)),
            },
            [word, name] => Ok(target(kind(word)?, name, None)),
            [word, name, namespace] => Ok(target(kind(word)?, name, Some(namespace))),
            _ => Err(wrong(text, "it has too many parts")),
        }
    }

    /// Parses what a command is given that takes machines' names: dots belong to the name, as in what kubectl shows.
    pub(crate) fn parse_name(text: &str) -> Result<Self, Fault> {
        if text.is_empty() || text.contains('/') {
            return Self::parse(text);
        }
        Ok(Self { kind: Kind::Vmi, name: text.to_owned(), namespace: None })
    }

    /// Parses `[user@]type/name[/namespace]`.
    pub(crate) fn parse_with_user(text: &str) -> Result<(Option<String>, Self), Fault> {
        match text.rsplit_once('@') {
            Some(("", _)) => Err(wrong(text, "the user before @ is empty")),
            Some((_, "")) => Err(wrong(text, "nothing follows @")),
            Some((user, rest)) => Ok((Some(user.to_owned()), Self::parse(rest)?)),
            None => Ok((None, Self::parse(text)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// User, kind, name, namespace.
    type Parts<'a> = (Option<&'a str>, Kind, &'a str, Option<&'a str>);

    #[track_caller]
    fn check(text: &str, expect: Result<Parts<'_>, &str>) {
        let found = Target::parse_with_user(text);
        match (&found, expect) {
            (Ok((user, target)), Ok(expect)) => {
                let found = (user.as_deref(), target.kind, target.name.as_str(), target.namespace.as_deref());
                assert_eq!(found, expect);
            }
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_name_keeps_its_dots() {
        #[track_caller]
        fn check(text: &str, name: &str, namespace: Option<&str>) {
            let target = Target::parse_name(text).unwrap();
            assert_eq!((target.name.as_str(), target.namespace.as_deref()), (name, namespace));
        }
        check("a", "a", None);
        check("a.b", "a.b", None);
        check("vm/a.b/ns", "a.b", Some("ns"));
        assert!(Target::parse_name("").is_err());
    }

    #[test]
    fn targets() {
        check("vmi/a", Ok((None, Kind::Vmi, "a", None)));
        check("vm/a", Ok((None, Kind::Vm, "a", None)));
        check("VirtualMachine/a/ns", Ok((None, Kind::Vm, "a", Some("ns"))));
        check("jdoe@vmis/a/ns", Ok((Some("jdoe"), Kind::Vmi, "a", Some("ns"))));
        check("j@doe@vm/a", Ok((Some("j@doe"), Kind::Vm, "a", None)));
        check("a", Ok((None, Kind::Vmi, "a", None)));
        check("a.ns", Ok((None, Kind::Vmi, "a", Some("ns"))));
        check("vm/a.b", Ok((None, Kind::Vm, "a.b", None)));
    }

    #[test]
    fn mistakes() {
        check("", Err("a part is empty"));
        check("pod/a", Err("\"pod\" is neither vm nor vmi"));
        check("vm/a/b/c", Err("too many parts"));
        check("vm//b", Err("a part is empty"));
        check("@vm/a", Err("the user before @ is empty"));
        check("a@", Err("nothing follows @"));
    }
}
