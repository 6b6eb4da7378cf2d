//! Lends a disk inside a container image to the launcher of the pod, as an open file.
//!
//! ```text
//!   container of the user's image                      launcher
//!   container-disk --socket S --path /disk  <--connect--
//!                                            --{"path":…,"size":N}\n + fd-->
//! ```
//!
//! It also serves such a disk over HTTP to an importer in the same pod, for images that the kubelet pulls.
//!
//! As a lender it reads nothing of the disk and follows no link out of the path it was given. Only the user it runs as itself may
//! connect. `--copy-to` installs the program into the volume that these containers share.

mod answer;
mod arguments;
mod http;
mod lend;

use std::process::ExitCode;

use arguments::Mode;

fn main() -> ExitCode {
    let outcome = match arguments::parse(std::env::args().skip(1)) {
        Ok(Mode::Copy { target }) => lend::install(&target),
        Ok(Mode::Lend { socket, paths }) => lend::serve(&socket, &paths),
        Ok(Mode::Serve { port, directory, ready, done }) => http::serve(port, &directory, &ready, &done),
        Err(usage) => {
            let _ = rustix::io::write(rustix::stdio::stderr(), format!("container-disk: {usage}\n").as_bytes());
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = rustix::io::write(rustix::stdio::stderr(), format!("container-disk: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}
