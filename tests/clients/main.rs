//! The embedded cluster as clients in other languages see it, on a live one: the Python `kubernetes` client and kube-rs.
//! `scripts/test.sh` starts the cluster and runs these.

mod python;
mod rust;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    // A second call changes nothing: the provider is the one that is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(4));
    let trials = match python::trials() {
        Ok(mut trials) => {
            trials.extend(rust::trials());
            trials
        }
        Err(error) => {
            vec![Trial::test("python::files", move || Err(Failed::from(format!("{error:#}"))))]
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
