//! The serial console through `virtctl console`, on a terminal.

use anyhow::{Context, Result, ensure};
use e2e::guest::NAME;
use e2e::wait::SOON;
use e2e::{Console, Namespace, machine};
use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::shared::with_guest;
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("console_logs_in_and_leaves_by_the_escape", logs_in_and_leaves_by_the_escape),
        long("console_restores_the_terminal_on_signals", restores_the_terminal_on_signals),
        trial("console_is_taken_over_and_taken_back", is_taken_over_and_taken_back),
        trial("console_ends_with_the_machine", ends_with_the_machine),
    ]
}

fn logs_in_and_leaves_by_the_escape() -> Result<()> {
    with_guest(|guest| {
        let mut console = Console::open(&guest.space, NAME)?;
        console.log_in("guest", "guest")?;
        let (printed, code) = console.run("hostname; id -un; tty")?;
        ensure!((printed.as_str(), code) == ("web\nguest\n/dev/ttyS0", 0), "{code}: {printed:?}");
        let (_, code) = console.run("sh -c 'exit 7'")?;
        ensure!(code == 7, "{code}");
        // Ctrl-C is the guest's: it ends what runs there and nothing here.
        // What is to be interrupted says itself that it runs: before, the key is the shell's, which may let it pass.
        console.type_in("sh -c 'echo slee\"\"ping; exec sleep 1000'\r")?;
        console.expect(&["sleeping"], SOON)?;
        console.type_in("\x03")?;
        console.expect(&[" $ "], SOON)?;
        let (printed, _) = console.run("echo still here")?;
        ensure!(printed == "still here", "{printed:?}");
        console.log_out()?;
        console.leave()
    })
}

fn restores_the_terminal_on_signals() -> Result<()> {
    with_guest(|guest| {
        for (signal, expect) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let console = Console::open(&guest.space, NAME)?;
            console.signal(signal)?;
            let (code, _) = console.end()?;
            ensure!(code == Some(expect), "{signal:?} ended virtctl with {code:?}");
        }
        Ok(())
    })
}

fn is_taken_over_and_taken_back() -> Result<()> {
    with_guest(|guest| {
        let mut first = guest.console()?;
        let mut second = Console::open(&guest.space, NAME)?;
        first.expect(&["Another session took this console over. Enter takes it back, Ctrl-C leaves."], SOON)?;
        ensure!(!first.is_raw()?, "a terminal without a console is not raw");
        // The shell is the guest's, not the session's: it is where the first session left it.
        second.log_in("root", "guest")?;
        ensure!(second.run("id -un")?.0 == "root");
        first.type_in("\r")?;
        first.expect(&["Successfully connected"], SOON)?;
        second.expect(&["Another session took this console over."], SOON)?;
        second.signal(Signal::INT)?;
        let (code, _) = second.end()?;
        ensure!(code == Some(130), "{code:?}");
        first.log_in("root", "guest")?;
        first.log_out()?;
        first.leave()
    })
}

/// Opened while the machine boots, the console waits; it says why it ends when the machine is gone.
fn ends_with_the_machine() -> Result<()> {
    let space = Namespace::new("console")?;
    space.apply(&machine::on_kernel("short", "Always"))?;
    space.wait("vmi", "short", "existed", |vmi| !vmi.is_null())?;
    let mut console = Console::open(&space, "short")?;
    console.log_in("root", "guest")?;
    space.virtctl(&["stop", "short", "--grace-period=0", "--force"])?;
    let (code, shown) = console.end().context("the console of a machine that was stopped")?;
    ensure!(code == Some(0) && shown.contains("disconnected: the guest's console closed"), "{code:?}: {shown:?}");
    Ok(())
}
