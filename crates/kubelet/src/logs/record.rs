//! One line of a container's log in the CRI format: `TIME stream F|P text`.

/// A parsed line; `text` without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) time: &'a str,
    pub(crate) stderr: bool,
    /// The line goes on in the next record.
    pub(crate) partial: bool,
    pub(crate) text: &'a [u8],
}

/// Reads one line; `None` when it is not in the format.
pub(crate) fn parse(line: &[u8]) -> Option<Record<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(fields.next()?).ok().filter(|time| !time.is_empty())?;
    let stderr = match fields.next()? {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    let partial = fields.next()?.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Record { time, stderr, partial, text: fields.next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines() {
        let time = "2026-11-20T10:00:00.123456789Z";
        let full = format!("{time} stdout F hello  world\n");
        assert_eq!(parse(full.as_bytes()), Some(Record { time, stderr: false, partial: false, text: b"hello  world" }));
        let partial = format!("{time} stderr P x");
        assert_eq!(parse(partial.as_bytes()), Some(Record { time, stderr: true, partial: true, text: b"x" }));
        let empty = format!("{time} stdout F ");
        assert_eq!(parse(empty.as_bytes()).map(|r| r.text), Some(&b""[..]));
        assert_eq!(parse(b"rubbish"), None);
        assert_eq!(parse(b""), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn text_comes_back(text in "[^\n]*", stderr: bool, partial: bool) {
            let line = format!("2026-01-01T00:00:00Z {} {} {text}\n", if stderr { "stderr" } else { "stdout" }, if partial { "P" } else { "F" });
            let record = parse(line.as_bytes()).unwrap();
            prop_assert_eq!((record.stderr, record.partial, record.text), (stderr, partial, text.as_bytes()));
        }
    }
}
