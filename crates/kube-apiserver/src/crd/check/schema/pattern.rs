//! Patterns are those of Go's regular expressions, which know less than ours.

/// Repetitions of one thing at most.
const REPEAT: usize = 1000;

/// Why a pattern is none.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    regex::RegexBuilder::new(pattern).size_limit(1 << 22).build().map_err(|error| error.to_string())?;
    let mut rest = pattern;
    let mut repeated = false;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '[' => class(rest),
            '*' | '+' | '?' | '{' => {
                let length = operator(rest)?;
                if length > 0 && repeated {
                    return Err(format!("invalid nested repetition operator before {rest:?}"));
                }
                repeated = length > 0;
                rest = &rest[length.max(1)..];
                if repeated {
                    // One question mark makes the operator prefer less.
                    rest = rest.strip_prefix('?').unwrap_or(rest);
                }
                continue;
            }
            // The question mark that begins a group's flags repeats nothing.
            '(' if rest.starts_with("(?") => 2,
            other => other.len_utf8(),
        };
        repeated = false;
        rest = &rest[taken..];
    }
    Ok(())
}

/// The length of the repetition operator at the beginning, 0 for a brace that is none.
fn operator(text: &str) -> Result<usize, String> {
    if !text.starts_with('{') {
        return Ok(1);
    }
    let Some(end) = text.find('}') else { return Ok(0) };
    let counts: Vec<&str> = text[1..end].split(',').collect();
    let is_number = |count: &str| !count.is_empty() && count.chars().all(|c| c.is_ascii_digit());
    if counts.len() > 2 || !is_number(counts[0]) || counts.get(1).is_some_and(|c| !c.is_empty() && !is_number(c)) {
        return Ok(0);
    }
    let large = |count: &&str| count.parse::<usize>().map_or(!count.is_empty(), |count| count > REPEAT);
    if counts.iter().any(large) {
        return Err(format!("invalid repeat count {:?}: at most {REPEAT} are possible", &text[..=end]));
    }
    Ok(end + 1)
}

/// The length of the class in brackets at the beginning.
fn class(text: &str) -> usize {
    let mut escaped = false;
    // A bracket that closes nothing yet stands for itself.
    let skipped = if text.starts_with("[^]") {
        3
    } else if text.starts_with("[]") {
        2
    } else {
        1
    };
    let mut inner = 0_usize;
    for (index, c) in text.char_indices().skip_while(|(index, _)| *index < skipped) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' if text[index..].starts_with("[:") => inner += 1,
            ']' if inner > 0 => inner -= 1,
            ']' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn patterns_outside_of_go_syntax_are_refused() {
        for good in ["^[[:alpha:]]+$", "^\\d+?$", "a{2,5}?b*", "[+*]+", "(?i)a", "(?:a+)+", "a{1000}", "\\++", "[]a]*"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["[", "(?=a)", "(a)\\1", "a++", "a**", "a{1001}", "a{2}{3}"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
