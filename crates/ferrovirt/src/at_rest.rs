//! What a long-lived program need not keep while it waits.

use std::future::Future;
use std::time::Duration;

/// How long a program takes to start, with room to spare.
const STARTED: Duration = Duration::from_secs(60);
/// How often what work has touched meanwhile is let go of.
const AGAIN: Duration = Duration::from_secs(300);

/// Runs `program`. Code that its start or its last work alone has used does not stay mapped, and what it has freed since goes
/// back to the kernel: with one program for all components, each of them would count most of it.
pub(crate) async fn run<T>(program: impl Future<Output = T>) -> T {
    let _task = kit::spawn("code", async {
        tokio::time::sleep(STARTED).await;
        loop {
            sys::heap::trim();
            sys::code::let_go();
            tokio::time::sleep(AGAIN).await;
        }
    });
    program.await
}
