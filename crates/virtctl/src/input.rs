//! Standard input as a channel, read by a thread of its own that never holds the program's end back.

use std::io;

use tokio::sync::mpsc;

/// Bytes read at a time.
const CHUNK: usize = 32 << 10;

/// Starts to read standard input. The channel closes at its end.
pub(crate) fn standard() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                    if sender.blocking_send(bytes).is_err() {
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(receiver)
}
