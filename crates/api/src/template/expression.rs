//! Values that are generated: `vm-[a-z0-9]{8}` is a text with eight random characters in it.

use std::collections::BTreeSet;

use super::Random;

/// The longest run of random characters.
const LONGEST: usize = 255;
/// In the order in which a range goes through them.
const LETTERS_AND_DIGITS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const SYMBOLS: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Replaces each `[RANGES]{LENGTH}` of `from` by that many characters of the ranges: single letters and digits, `a-z`, `A-Z`, `0-9`,
/// `\w` (letters, digits and `_`), `\d` (digits), `\a` (letters and digits), `\A` (symbols). Whatever else there is stays.
///
/// # Errors
/// When a length is not within 1 and 255, or a range is none.
pub fn generate(from: &str, random: Random<'_>) -> Result<String, String> {
    let (mut out, mut rest) = (String::with_capacity(from.len()), from);
    while let Some(at) = rest.find('[') {
        out.push_str(&rest[..at]);
        let Some((ranges, length, after)) = parts(&rest[at..]) else {
            out.push('[');
            rest = &rest[at + 1..];
            continue;
        };
        let wrong = |why: &str| format!("[{ranges}]{{{length}}}: {why}");
        let count = length.parse().ok().filter(|count| (1..=LONGEST).contains(count));
        let count: usize = count.ok_or_else(|| wrong("the length is a number from 1 to 255"))?;
        let alphabet = alphabet(ranges).map_err(|why| wrong(&why))?;
        out.extend((0..count).map(|_| alphabet[random(alphabet.len()) % alphabet.len()]));
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The ranges, the length and what follows of a text that begins with an expression.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (ranges, after) = text.strip_prefix('[')?.split_once("]{")?;
    let (length, after) = after.split_once('}')?;
    let of_ranges = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '\\';
    let of_length = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good =
        !ranges.is_empty() && ranges.chars().all(of_ranges) && !length.is_empty() && length.chars().all(of_length);
    good.then_some((ranges, length, after))
}

/// The characters of the ranges, each once; never none.
fn alphabet(ranges: &str) -> Result<Vec<char>, String> {
    let all: Vec<char> = ranges.chars().collect();
    let mut out = BTreeSet::new();
    let mut at = 0;
    while at < all.len() {
        let at_most = |kind: fn(&char) -> bool| (' '..='~').filter(kind);
        match (all[at], all.get(at + 1), all.get(at + 2)) {
            ('\\', Some('w'), _) => out.extend(at_most(|c| c.is_ascii_alphanumeric() || *c == '_')),
            ('\\', Some('d'), _) => out.extend(at_most(char::is_ascii_digit)),
            ('\\', Some('a'), _) => out.extend(at_most(char::is_ascii_alphanumeric)),
            ('\\', Some('A'), _) => out.extend(SYMBOLS.chars()),
            (first, Some('-'), Some(last)) => {
                let place = |c: char| LETTERS_AND_DIGITS.find(c);
                let range = place(first).zip(place(*last)).filter(|(from, to)| from <= to);
                let Some((from, to)) = range else {
                    return Err(format!("{first}-{last} is no range of a-z, A-Z and 0-9, in this order"));
                };
                out.extend(LETTERS_AND_DIGITS[from..=to].chars());
                at += 1;
            }
            (one, ..) if one.is_ascii_alphanumeric() => {
                out.insert(one);
                at += 1;
                continue;
            }
            (one, ..) => return Err(format!("{one} stands alone in it: write a range, or a class such as \\w")),
        }
        at += 2;
    }
    Ok(out.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// With the last character of each alphabet.
    #[track_caller]
    fn check(from: &str, expect: Result<&str, &str>) {
        let found = generate(from, &mut |below| below - 1);
        assert_eq!(found.as_deref().map_err(String::as_str), expect, "{from}");
    }

    #[test]
    fn expressions_are_replaced_and_the_rest_stays() {
        check("test[0-9]{1}x", Ok("test9x"));
        check("[a-c]{2}-[XY]{1}[A-F0-9]{1}", Ok("cc-YF"));
        check(r"[\d]{1}[\w]{1}[\a]{1}[\A]{1}", Ok("9zz~"));
        check("[]{1} [a-z] {3} [a-z]{} [", Ok("[]{1} [a-z] {3} [a-z]{} ["));
        check("[x-C]{1}[a-9]{1}", Ok("zz"));
        check("", Ok(""));
    }

    #[test]
    fn expressions_that_are_none_are_refused() {
        check("[a-z]{0}", Err("[a-z]{0}: the length is a number from 1 to 255"));
        check("[a-z]{256}", Err("[a-z]{256}: the length is a number from 1 to 255"));
        check("[a-z]{x}", Err("[a-z]{x}: the length is a number from 1 to 255"));
        check("[z-a]{1}", Err("[z-a]{1}: z-a is no range of a-z, A-Z and 0-9, in this order"));
        check("[A-z]{1}", Err("[A-z]{1}: A-z is no range of a-z, A-Z and 0-9, in this order"));
        check("[-]{1}", Err("[-]{1}: - stands alone in it: write a range, or a class such as \\w"));
    }

    proptest! {
        #[test]
        fn any_text_is_an_expression_or_refused(text in r"[\[\]{}a-c0-9\\wé-]{0,30}") {
            if let Ok(made) = generate(&text, &mut |below| below / 2) {
                let is_plain = !text.contains("]{");
                prop_assert!(!is_plain || made == text);
            }
        }
    }
}
