//! The driver on libvirt's test driver: no QEMU, the same code.

use std::path::Path;

use clap::Parser as _;
use kit::shutdown::CancellationToken;
use virt_launcher::{Args, Dirs, Driver, Error, Handle};

use crate::daemon::Daemon;

fn driver(daemon: &Daemon, run: &Path, shutdown: &CancellationToken) -> (Driver, Handle) {
    let args = Args::parse_from([
        "virt-launcher",
        "--name=n",
        "--namespace=s",
        "--uid=u",
        "--start-timeout-seconds=60",
        &format!("--run-dir={}", run.display()),
    ]);
    Driver::new(&args, Dirs::below(run), daemon.open("test:///default"), shutdown.clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_nobody_asks_ends_with_a_failure() {
    let daemon = Daemon::start();
    let run = tempfile::tempdir().unwrap();
    let (driver, _handle) = driver(&daemon, run.path(), &CancellationToken::new());
    let outcome = driver.run(CancellationToken::new()).await;
    assert!(matches!(outcome, Err(Error::NeverStarted(_))));
}

#[tokio::test(start_paused = true)]
async fn told_to_end_before_any_guest_it_ends_well() {
    let daemon = Daemon::start();
    let run = tempfile::tempdir().unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let (driver, _handle) = driver(&daemon, run.path(), &shutdown);
    driver.run(CancellationToken::new()).await.unwrap();
}
