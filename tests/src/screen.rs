//! A guest's screen through `virtctl vnc`, and a viewer of it that asks for a pixel now and then.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Namespace;
use crate::wait::SOON;

/// More pixels than any screen here has: what announces them is not an update.
const MOST: usize = 1 << 23;

/// `virtctl vnc` with no viewer, which waits for any.
pub struct Screen {
    child: Child,
    port: u16,
}

impl Screen {
    /// Opens the screen of a VMI.
    pub fn open(space: &Namespace, vmi: &str) -> Result<Self> {
        let mut command = space.virtctl_command(&["vnc", vmi, "--proxy-only"]);
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run virtctl")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line).context("no port")?;
        let said: Value = serde_json::from_str(&line).with_context(|| format!("{line:?} names no port"))?;
        let port = said["port"].as_u64().and_then(|port| u16::try_from(port).ok()).context("no port")?;
        Ok(Self { child, port })
    }

    /// Connects as a viewer does, and reads how a screen begins.
    pub fn view(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).context("nobody listens for viewers")?;
        stream.set_read_timeout(Some(SOON))?;
        let mut greeting = [0; 12];
        stream.read_exact(&mut greeting).context("the screen says nothing")?;
        ensure!(greeting.starts_with(b"RFB 003."), "{greeting:?}");
        Ok(stream)
    }

    /// Connects as a viewer does that goes on to look.
    pub fn viewer(&self) -> Result<Viewer> {
        let mut viewer = Viewer { stream: self.view()?, bytes_per_pixel: 0 };
        viewer.begin().context("the screen does not begin")?;
        Ok(viewer)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A viewer on one connection, by RFB 3.8 without a password.
pub struct Viewer {
    stream: TcpStream,
    bytes_per_pixel: usize,
}

impl Viewer {
    fn begin(&mut self) -> Result<()> {
        self.stream.write_all(b"RFB 003.008\n")?;
        let [count] = self.read::<1>()?;
        let kinds = self.read_all(usize::from(count))?;
        ensure!(kinds.contains(&1), "it wants more than nothing: {kinds:?}");
        self.stream.write_all(&[1])?;
        ensure!(self.read::<4>()? == [0; 4], "it refuses");
        // Others may look, too.
        self.stream.write_all(&[1])?;
        let said = self.read::<24>()?;
        self.bytes_per_pixel = usize::from(said[4]) / 8;
        let name = u32::from_be_bytes([said[20], said[21], said[22], said[23]]);
        self.read_all(usize::try_from(name)?)?;
        // Pixels as they are, and nothing else.
        self.stream.write_all(&[2, 0, 0, 1, 0, 0, 0, 0])?;
        Ok(())
    }

    /// Asks for the first pixel, whether it has changed or not, and waits until something of the screen is there.
    pub fn look(&mut self) -> Result<()> {
        self.stream.write_all(&[3, 0, 0, 0, 0, 0, 0, 1, 0, 1])?;
        loop {
            match self.read::<1>()? {
                [0] => break,
                [2] => {}
                [3] => {
                    let head = self.read::<7>()?;
                    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
                    self.read_all(usize::try_from(length)?)?;
                }
                other => anyhow::bail!("message {other:?} is not expected"),
            }
        }
        let [_, high, low] = self.read::<3>()?;
        for _ in 0..u16::from_be_bytes([high, low]) {
            let head = self.read::<12>()?;
            let size = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
            ensure!(head[8..] == [0; 4], "an encoding that was not asked for: {head:?}");
            self.read_all(size(4) * size(6) * self.bytes_per_pixel)?;
        }
        Ok(())
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the screen was closed, or says nothing")?;
        Ok(bytes)
    }

    fn read_all(&mut self, length: usize) -> Result<Vec<u8>> {
        ensure!(length <= 4 * MOST, "{length} bytes are announced");
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).context("the screen was closed, or says nothing")?;
        Ok(bytes)
    }
}
