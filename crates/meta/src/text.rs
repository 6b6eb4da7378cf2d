//! Text of somebody else's, made fit for a terminal.

use std::borrow::Cow;

/// `text` with everything that a terminal obeys instead of showing it written out as `\u001b`: control characters but for
/// line ends and tabs, and the marks that turn the direction of writing. What was JSON stays JSON and means the same.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Bytes that a status says of one thing at most.
pub const STATUS: usize = 4096;

/// [`printable`], and of a text longer than `most` bytes only its beginning: who wrote it does not decide how much is stored and shown.
pub fn brief(text: &str, most: usize) -> Cow<'_, str> {
    const REST: &str = "…";
    let shown = printable(text);
    if shown.len() <= most {
        return shown;
    }
    let mut end = most.saturating_sub(REST.len());
    while !shown.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{REST}", &shown[..end]))
}

fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || matches!(c, '\u{2028}' | '\u{2029}') || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_somebody_else_wrote() {
        let check = |text: &str, expect: &str| assert_eq!(printable(text), expect);
        check("Debian GNU/Linux 13 (trixie), größer\n\tzwei", "Debian GNU/Linux 13 (trixie), größer\n\tzwei");
        // Clears the screen, sets the window's title, and goes back to write over the line.
        check("\x1b[2Jroot", "\\u001b[2Jroot");
        check("\x1b]0;title\x07", "\\u001b]0;title\\u0007");
        check("good\rbad", "good\\u000dbad");
        // The same in one byte of the C1 set, and text that reads backwards.
        check("\u{9b}31m", "\\u009b31m");
        check("a\u{202e}b\u{2066}c", "a\\u202eb\\u2066c");
    }

    #[test]
    fn text_is_cut_to_its_bound() {
        let check = |text: &str, most: usize, expect: &str| {
            let shown = brief(text, most);
            assert_eq!(shown, expect);
            assert!(shown.len() <= most && brief(&shown, most) == shown, "{shown}");
        };
        check("short", 5, "short");
        check("shorter", 6, "sho…");
        // What is written out is counted as it is written, and no character is cut in two.
        check("\x1b[2J", 6, "\\u0…");
        check("größer", 7, "grö…");
        check("größer", 6, "gr…");
    }

    #[test]
    fn json_stays_json() {
        let text = serde_json::to_string(&serde_json::json!({ "name": "\u{9b}2J\u{202e}\u{7f}" })).unwrap();
        let shown = printable(&text);
        assert!(shown.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["name"], "\u{9b}2J\u{202e}\u{7f}");
    }
}
