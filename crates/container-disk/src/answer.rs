//! The one line of JSON that goes with each file.

/// Says which file is lent and how large it is.
pub(crate) fn file(path: &str, size: u64) -> String {
    format!("{{\"path\":{},\"size\":{size}}}\n", quoted(path))
}

/// Says why none is.
pub(crate) fn error(message: &str) -> String {
    format!("{{\"error\":{}}}\n", quoted(message))
}

/// Text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines() {
        assert_eq!(super::file("/disk/a\"b\n", 7), "{\"path\":\"/disk/a\\\"b\\u000a\",\"size\":7}\n");
        assert_eq!(super::error("no file"), "{\"error\":\"no file\"}\n");
    }
}
