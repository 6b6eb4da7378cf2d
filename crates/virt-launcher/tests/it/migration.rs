//! A guest moves from one launcher to another, through a node agent that is this test.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::{MigrationChannel, MigrationOptions, MigrationOutcome, MigrationProgress};
use rpc::launcher::{DomainState, Empty, ExpectRequest, MigrateRequest, SyncRequest};
use serde_json::json;

use crate::boot::{Launcher, greeting_disk, lend, vmi};
use crate::support::{connect, until, watch};

/// Where both launchers believe their directory to be.
const RUN: &str = "/mnt";

/// Carries connections of the source to the sockets of the target, until the source is gone.
fn carry(source: &Launcher, target: &Launcher) {
    let agent = UnixStream::connect(source.path("kubevirt/sockets/channels-sock")).unwrap();
    let (libvirt, sockets) = (target.path("libvirt/libvirt-sock"), target.path("kubevirt/sockets"));
    std::thread::spawn(move || {
        while let Ok((line, mut fds)) = sys::fdpass::receive_line(&agent, 64) {
            let channel = MigrationChannel::named(&line).unwrap();
            let to =
                if channel == MigrationChannel::Libvirt { libvirt.clone() } else { sockets.join(channel.socket()) };
            join(fds.pop().unwrap(), &to);
        }
    });
}

fn join(from: OwnedFd, to: &Path) {
    let from = UnixStream::from(from);
    from.set_nonblocking(false).unwrap();
    let to = UnixStream::connect(to).unwrap();
    for (mut reader, mut writer) in [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)] {
        std::thread::spawn(move || {
            // Either side may be gone already.
            match std::io::copy(&mut reader, &mut writer) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => panic!("{error}"),
                _ => drop(writer.shutdown(std::net::Shutdown::Write)),
            }
        });
    }
}

/// The same, until libvirt asks the target to finish: the answer to that is lost, and the way with it.
fn carry_but_lose_the_last_answer(source: &Launcher, target: &Launcher) {
    let agent = UnixStream::connect(source.path("kubevirt/sockets/channels-sock")).unwrap();
    let (libvirt, sockets) = (target.path("libvirt/libvirt-sock"), target.path("kubevirt/sockets"));
    std::thread::spawn(move || {
        while let Ok((line, mut fds)) = sys::fdpass::receive_line(&agent, 64) {
            let from = fds.pop().unwrap();
            match MigrationChannel::named(&line).unwrap() {
                MigrationChannel::Libvirt => join_until_finish(from, &libvirt, agent.try_clone().unwrap()),
                channel => join(from, &sockets.join(channel.socket())),
            }
        }
    });
}

fn join_until_finish(from: OwnedFd, to: &Path, agent: UnixStream) {
    const FINISH: u32 = 306;
    let from = UnixStream::from(from);
    from.set_nonblocking(false).unwrap();
    let to = UnixStream::connect(to).unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    let (mut calls, mut called) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let asked = lost.clone();
    std::thread::spawn(move || {
        let mut head = [0; 16];
        while calls.read_exact(&mut head).is_ok() {
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut rest = vec![0; word(0) as usize - head.len()];
            calls.read_exact(&mut rest).unwrap();
            let finish = word(12) == FINISH;
            asked.fetch_or(finish, Ordering::SeqCst);
            called.write_all(&[&head[..], &rest].concat()).unwrap();
            if finish {
                agent.shutdown(std::net::Shutdown::Both).unwrap();
                return;
            }
        }
    });
    let (mut answers, mut answered) = (to, from);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = answers.read(&mut buffer) {
            if !lost.load(Ordering::SeqCst) {
                answered.write_all(&buffer[..length]).unwrap();
            }
        }
    });
}

fn progress(state: &DomainState) -> MigrationProgress {
    serde_json::from_str(&state.migration).unwrap_or_default()
}

fn options(uid: &str, bandwidth: u64) -> MigrateRequest {
    let options = MigrationOptions { uid: uid.into(), bandwidth, trust_disks: true, ..MigrationOptions::default() };
    MigrateRequest { options: serde_json::to_string(&options).unwrap() }
}

fn pod() -> Launcher {
    Launcher::start_in_pod(Path::new(RUN))
}

fn sock(launcher: &Launcher) -> PathBuf {
    launcher.path("kubevirt/sockets/launcher-sock")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_moves_with_its_disks_and_an_aborted_one_stays() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("two pods on one machine need root");
        return;
    }
    let (mut source, mut target) = (pod(), pod());
    let mut at_source = connect(&sock(&source)).await;
    lend(&mut source, "root", &greeting_disk());
    let environment = json!({"emulation": true, "logSerialConsole": true}).to_string();
    at_source.sync(SyncRequest { vmi: vmi(), environment: environment.clone() }).await.unwrap();
    let mut leaving = watch(&mut at_source).await;
    until(&mut leaving, "status Running", |state| state.status == "Running").await;

    let mut at_target = connect(&sock(&target)).await;
    lend(&mut target, "root", &greeting_disk());
    at_target.expect(ExpectRequest { vmi: vmi() }).await.unwrap();
    let refused = at_target.pause(Empty {}).await.unwrap_err();
    assert_eq!(refused.message(), "the virtual machine is still on its way here");
    carry(&source, &target);

    at_source.migrate(options("slow", 1 << 20)).await.unwrap();
    until(&mut leaving, "progress", |state| progress(state).processed > 0).await;
    let refused = at_source.migrate(options("other", 0)).await.unwrap_err();
    assert_eq!(refused.message(), "migration slow has not ended");
    at_source.abort_migration(Empty {}).await.unwrap();
    let stayed = until(&mut leaving, "an outcome", |state| progress(state).outcome.is_some()).await;
    assert_eq!(progress(&stayed).outcome, Some(MigrationOutcome::Aborted));
    assert_eq!((stayed.status.as_str(), progress(&stayed).uid.as_str()), ("Running", "slow"));

    let mut arriving = watch(&mut at_target).await;
    at_source.migrate(options("quick", 0)).await.unwrap();
    let gone = until(&mut leaving, "status Shutoff", |state| state.status == "Shutoff").await;
    assert_eq!((gone.reason.as_str(), progress(&gone).outcome), ("Migrated", Some(MigrationOutcome::Moved)));
    drop(leaving);
    assert!(source.child.wait().unwrap().success());

    until(&mut arriving, "status Running", |state| state.status == "Running").await;
    assert!(target.domain_xml().contains("test_boot"));
    // The node agent hands the VMI over as ever: it runs already.
    at_target.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap();
    at_target.pause(Empty {}).await.unwrap();
    until(&mut arriving, "PausedUser", |state| state.reason == "PausedUser").await;
    at_target.kill(Empty {}).await.unwrap();
    until(&mut arriving, "status Shutoff", |state| state.status == "Shutoff").await;
    drop(arriving);
    assert!(target.child.wait().unwrap().success());
}

/// What libvirt takes for a failure may be a guest that runs on the target: it is asked, and one of them goes on.
#[tokio::test(flavor = "multi_thread")]
async fn when_the_last_answer_is_lost_the_target_says_who_runs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("two pods on one machine need root");
        return;
    }
    for runs_there in [true, false] {
        let (mut source, mut target) = (pod(), pod());
        let mut at_source = connect(&sock(&source)).await;
        lend(&mut source, "root", &greeting_disk());
        let environment = json!({"emulation": true}).to_string();
        at_source.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap();
        let mut leaving = watch(&mut at_source).await;
        until(&mut leaving, "status Running", |state| state.status == "Running").await;
        let mut at_target = connect(&sock(&target)).await;
        lend(&mut target, "root", &greeting_disk());
        at_target.expect(ExpectRequest { vmi: vmi() }).await.unwrap();
        let mut arriving = watch(&mut at_target).await;

        carry_but_lose_the_last_answer(&source, &target);
        at_source.migrate(options("torn", 0)).await.unwrap();
        let waits = until(&mut leaving, "doubt", |state| progress(state).uncertain).await;
        assert_eq!(progress(&waits).outcome, None);
        until(&mut arriving, "status Running", |state| state.status == "Running").await;
        let mut agent = UnixStream::connect(source.path("kubevirt/sockets/channels-sock")).unwrap();
        if runs_there {
            agent.write_all(b"moved\n").unwrap();
            let gone = until(&mut leaving, "status Shutoff", |state| state.status == "Shutoff").await;
            assert_eq!((gone.reason.as_str(), progress(&gone).outcome), ("Migrated", Some(MigrationOutcome::Moved)));
            drop(leaving);
            assert!(source.child.wait().unwrap().success());
            at_target.kill(Empty {}).await.unwrap();
        } else {
            at_target.kill(Empty {}).await.unwrap();
            until(&mut arriving, "status Shutoff", |state| state.status == "Shutoff").await;
            drop(arriving);
            assert!(target.child.wait().unwrap().success());
            agent.write_all(b"stays\n").unwrap();
            let goes_on = |state: &DomainState| progress(state).outcome.is_some() && state.status == "Running";
            let stayed = until(&mut leaving, "an outcome and status Running", goes_on).await;
            assert!(matches!(progress(&stayed).outcome, Some(MigrationOutcome::Failed(_))), "{}", stayed.migration);
            at_source.kill(Empty {}).await.unwrap();
        }
    }
}
