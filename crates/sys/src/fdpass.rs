//! File descriptors sent over Unix sockets (`SCM_RIGHTS`), with a bounded message beside them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::{Error, Result, call};

/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Sends `message`, which must not be empty, with `fds` attached to its first byte.
pub fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    if message.is_empty() || fds.len() > MAX_FDS {
        return Err(Error::Protocol(format!("{} bytes with {} descriptors cannot be sent", message.len(), fds.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Error::Protocol("descriptors do not fit the control buffer".into()));
    }
    let mut sent =
        retry(|| rustix::net::sendmsg(&socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL))?;
    while sent < message.len() {
        sent += retry(|| rustix::net::send(&socket, &message[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

fn retry(mut attempt: impl FnMut() -> rustix::io::Result<usize>) -> Result<usize> {
    loop {
        match attempt() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(call("send on a socket")),
        }
    }
}

/// Receives at most `limit` bytes and [`MAX_FDS`] descriptors, which are close-on-exec. An empty message means that the
/// other side closed.
pub fn receive(socket: impl AsFd, limit: usize) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; limit];
    let got = loop {
        let mut iov = [IoSliceMut::new(&mut message)];
        match rustix::net::recvmsg(&socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.map_err(call("receive from a socket"))?,
        }
    };
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Error::Protocol("more descriptors than accepted".into()));
    }
    message.truncate(got.bytes);
    Ok((message, fds))
}

/// Receives one line of at most `limit` bytes, without its newline, and all descriptors that came with it.
pub fn receive_line(socket: impl AsFd, limit: usize) -> Result<(String, Vec<OwnedFd>)> {
    line(limit, |left| receive(&socket, left))
}

/// Like [`receive_line`], all of it within `time`: however slowly the other side writes, it is not waited for any longer.
pub fn receive_line_within(socket: &UnixStream, limit: usize, time: Duration) -> Result<(String, Vec<OwnedFd>)> {
    let deadline = Instant::now() + time;
    line(limit, |left| {
        let late = || call("receive from a socket in time")(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let remaining =
            deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or_else(late)?;
        socket.set_read_timeout(Some(remaining)).map_err(call("limit the time to receive"))?;
        receive(socket, left)
    })
}

fn line(
    limit: usize,
    mut receive: impl FnMut(usize) -> Result<(Vec<u8>, Vec<OwnedFd>)>,
) -> Result<(String, Vec<OwnedFd>)> {
    let mut line = Vec::new();
    let mut fds = Vec::new();
    loop {
        let (part, more) = receive(limit.saturating_sub(line.len()).max(1))?;
        fds.extend(more);
        let closed = part.is_empty();
        line.extend(part);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            break;
        }
        if closed || line.len() >= limit || fds.len() > MAX_FDS {
            return Err(Error::Protocol(format!("no complete line within {limit} bytes")));
        }
    }
    String::from_utf8(line).map(|text| (text, fds)).map_err(|_| Error::Protocol("a line that is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_and_its_line_arrive_together() {
        let (a, b) = UnixStream::pair().unwrap();
        let path = std::env::temp_dir().join(format!("fdpass-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).unwrap();
        file.write_all(b"content").unwrap();
        send(&a, b"{\"path\":\"x\"}\n", &[file.as_fd()]).unwrap();
        let (line, mut fds) = receive_line(&b, 100).unwrap();
        assert_eq!((line.as_str(), fds.len()), ("{\"path\":\"x\"}", 1));
        drop(file);
        let mut received = std::fs::File::options().read(true).open(&path).unwrap();
        let mut text = String::new();
        received.rewind().unwrap();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert!(std::fs::File::from(fds.remove(0)).metadata().unwrap().len() == 7);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn lines_are_bounded() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, &[b'x'; 64], &[]).unwrap();
        assert!(receive_line(&b, 16).is_err());
        drop(a);
        let (c, d) = UnixStream::pair().unwrap();
        drop(c);
        assert!(receive_line(&d, 16).is_err());
    }
    #[test]
    fn a_line_that_comes_too_slowly_is_not_waited_for() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let slow = std::thread::spawn(move || {
            while a.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let error = receive_line_within(&b, 1 << 20, Duration::from_millis(200)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5), "{error}");
        drop(b);
        slow.join().unwrap();
    }
}

#[cfg(test)]
mod properties {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A line within its bound, with what came beside it, or an error: never more, and never a panic.
        #[test]
        fn any_message_is_one_bounded_line_or_refused(
            messages in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 1..200), 0..=MAX_FDS), 0..4),
            limit in 1_usize..256,
        ) {
            let (a, b) = UnixStream::pair().unwrap();
            // Not the socket itself: whoever got that would never see its end.
            let file = std::fs::File::open("/dev/null").unwrap();
            for (message, count) in &messages {
                send(&a, message, &vec![file.as_fd(); *count]).unwrap();
            }
            drop(a);
            let all: Vec<u8> = messages.iter().flat_map(|(message, _)| message.clone()).collect();
            if let Ok((line, fds)) = receive_line(&b, limit) {
                prop_assert!(line.len() <= limit && fds.len() <= 2 * MAX_FDS);
                prop_assert!(!line.contains('\n') && all.starts_with(line.as_bytes()));
            }
        }
    }
}
