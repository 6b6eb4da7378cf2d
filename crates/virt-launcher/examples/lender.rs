//! Lends one file to a launcher, as the container of a containerDisk does: `lender SOCKET FILE`.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err(Error::other("usage: lender SOCKET FILE"));
    };
    let listener = UnixListener::bind(socket)?;
    for stream in listener.incoming() {
        let file = File::open(&path)?;
        let line = format!("{{\"path\":\"{path}\",\"size\":{}}}\n", file.metadata()?.len());
        sys::fdpass::send(stream?, line.as_bytes(), &[file.as_fd()]).map_err(Error::other)?;
    }
    Ok(())
}
