//! Text on standard output: a reader that went away is no failure, and what a guest or a server says moves no cursor.

use std::io::{self, Write};

use meta::text::printable;

use crate::fault::Fault;

/// Prints `text` and a line end. What a terminal would obey is written out.
pub(crate) fn say(text: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(printable(text).as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Fault::new("cannot print").because(error)),
        _ => Ok(()),
    }
}
