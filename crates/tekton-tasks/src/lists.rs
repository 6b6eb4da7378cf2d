//! Params of several values. Tekton makes one word of each value, wherever they stand, so they stand between marks:
//! `--list=FLAG VALUE VALUE --end-list`, behind all other words. Pure.

/// Begins a list, with the flag that each of its values is given to.
pub const BEGIN: &str = "--list=";
/// Ends it.
pub const END: &str = "--end-list";

/// The words with `--FLAG=VALUE` for each value of a list.
///
/// # Errors
/// When marks do not fit each other: a value that is a mark would otherwise be taken for the words of somebody else.
pub fn expand(words: Vec<String>) -> Result<Vec<String>, String> {
    let (mut out, mut flag, mut seen): (Vec<String>, Option<String>, Vec<String>) = (Vec::new(), None, Vec::new());
    for word in words {
        if let Some(name) = word.strip_prefix(BEGIN) {
            if flag.is_some() || seen.iter().any(|held| held == name) {
                return Err(format!("a value of a list may not begin with {BEGIN}"));
            }
            seen.push(name.to_owned());
            flag = Some(name.to_owned());
        } else if word == END {
            if flag.take().is_none() {
                return Err(format!("a value of a list may not be {END}"));
            }
        } else if let Some(flag) = &flag {
            out.push(format!("--{flag}={word}"));
        } else if seen.is_empty() {
            out.push(word);
        } else {
            return Err(format!("{word:?} is behind a list, and in none: a value of a list may not be {END}"));
        }
    }
    match flag {
        None => Ok(out),
        Some(flag) => Err(format!("the list {flag} does not end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &[&str], expect: Result<&[&str], &str>) {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        match (expand(words), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn values_are_given_to_their_flag() {
        check(&["a", "--b=c"], Ok(&["a", "--b=c"]));
        let words = ["a", "--list=x", "1", "--y", "--end-list", "--list=z", "--end-list"];
        check(&words, Ok(&["a", "--x=1", "--x=--y"]));
    }

    /// Who gives the values of one param must not give those of another.
    #[test]
    fn values_that_are_marks_are_refused() {
        check(&["--list=x", "--end-list", "--script=evil", "--end-list"], Err("is behind a list"));
        check(
            &["--list=x", "--end-list", "--list=z", "evil", "--end-list", "--list=z", "--end-list"],
            Err("may not begin"),
        );
        check(&["--list=x", "--list=z", "--end-list"], Err("may not begin"));
        check(&["--list=x", "--end-list", "--end-list"], Err("may not be --end-list"));
        check(&["--list=x", "a"], Err("does not end"));
    }
}
