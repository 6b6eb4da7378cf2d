//! The connection: the handshake, and requests one after another.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::Error;
use crate::extents::{Extent, append};

/// `NBDMAGIC`, `IHAVEOPT`, and what answers to options begin with.
const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// What requests and their answers begin with.
const REQUEST: u32 = 0x2560_9513;
const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;

/// Kinds of answers to options.
mod said {
    pub(super) const ACK: u32 = 1;
    pub(super) const INFO: u32 = 3;
    pub(super) const CONTEXT: u32 = 4;
    pub(super) const ERROR: u32 = 1 << 31;
}

const READ: u16 = 0;
const BLOCK_STATUS: u16 = 7;

/// Kinds of parts of an answer to a request.
mod part {
    pub(super) const NONE: u16 = 0;
    pub(super) const DATA: u16 = 1;
    pub(super) const HOLE: u16 = 2;
    pub(super) const STATUS: u16 = 5;
    pub(super) const ERROR: u16 = 1 << 15;
}
const DONE: u16 = 1;

/// Bytes of the largest answer to an option, and how many answers one option may have.
const LARGEST_OPTION: usize = 64 << 10;
const MOST_ANSWERS: usize = 64;
/// Bytes of the largest description of blocks: as many as QEMU sends at once, and a little.
const LARGEST_STATUS: usize = (1 << 20) + 64;
/// Bytes that are read at once at most: any server takes so much.
const LARGEST_READ: u32 = 32 << 20;

/// A connection to one export.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    size: u64,
    /// Numbers of the contexts, in the order in which they were asked for.
    contexts: Vec<u32>,
    cookie: u64,
}

/// The head of a part of an answer.
struct Part {
    last: bool,
    kind: u16,
    length: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Opens the export called `export`, and these contexts of it.
    ///
    /// # Errors
    /// When there is no such export, or it lacks a context.
    pub async fn connect(mut stream: S, export: &str, contexts: &[&str]) -> Result<Self, Error> {
        if stream.read_u64().await? != GREETING || stream.read_u64().await? != OPTION {
            return Err(Error::Protocol("it greets in another way"));
        }
        let flags = stream.read_u16().await?;
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(Error::Protocol("it is older than the newstyle handshake"));
        }
        stream.write_u32(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES))).await?;
        let mut client = Self { stream, size: 0, contexts: Vec::new(), cookie: 0 };
        client.option(STRUCTURED_REPLY, "structured replies", &[]).await?;
        if !contexts.is_empty() {
            client.contexts = client.open_contexts(export, contexts).await?;
        }
        client.size = client.go(export).await?;
        Ok(client)
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes at a place.
    ///
    /// # Errors
    /// When they are not within the export, or the server does not send all of them.
    pub async fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        if length > LARGEST_READ {
            return Err(Error::Beyond { offset, length, size: self.size });
        }
        self.request(READ, offset, length).await?;
        let mut bytes = vec![0; length as usize];
        let mut got = 0;
        loop {
            let part = self.part().await?;
            match part.kind {
                part::DATA if part.length > 8 => {
                    let place = place(self.stream.read_u64().await?, part.length - 8, offset, bytes.len())?;
                    got += place.len();
                    self.stream.read_exact(&mut bytes[place]).await?;
                }
                part::HOLE if part.length == 12 => {
                    let from = self.stream.read_u64().await?;
                    got += place(from, self.stream.read_u32().await? as usize, offset, bytes.len())?.len();
                }
                part::NONE if part.length == 0 => {}
                _ => return Err(self.failure(&part).await),
            }
            if part.last {
                break;
            }
        }
        if got == bytes.len() { Ok(bytes) } else { Err(Error::Protocol("it sent something else than was asked for")) }
    }

    /// Of which kind the blocks at a place are, for each context: from `offset` on, and as far as the server says, but no
    /// further than was asked. No list is empty.
    ///
    /// # Errors
    /// When they are not within the export, or the server says nothing of a context.
    pub async fn status(&mut self, offset: u64, length: u32) -> Result<Vec<Vec<Extent>>, Error> {
        self.request(BLOCK_STATUS, offset, length).await?;
        let mut lists = vec![Vec::new(); self.contexts.len()];
        loop {
            let part = self.part().await?;
            match part.kind {
                part::STATUS if part.length >= 12 && part.length <= LARGEST_STATUS && part.length % 8 == 4 => {
                    let context = self.stream.read_u32().await?;
                    let mut described = vec![0; part.length - 4];
                    self.stream.read_exact(&mut described).await?;
                    let Some(at) = self.contexts.iter().position(|known| *known == context) else {
                        return Err(Error::Protocol("it describes blocks by a context that nobody asked for"));
                    };
                    lists[at] = extents(&described, offset, u64::from(length))?;
                }
                part::NONE if part.length == 0 => {}
                _ => return Err(self.failure(&part).await),
            }
            if part.last {
                break;
            }
        }
        if lists.iter().any(Vec::is_empty) {
            return Err(Error::Protocol("it does not describe the blocks that it was asked for"));
        }
        Ok(lists)
    }

    async fn request(&mut self, kind: u16, offset: u64, length: u32) -> Result<(), Error> {
        if length == 0 || offset.checked_add(u64::from(length)).is_none_or(|end| end > self.size) {
            return Err(Error::Beyond { offset, length, size: self.size });
        }
        self.cookie += 1;
        let mut head = Vec::with_capacity(28);
        head.extend(REQUEST.to_be_bytes());
        head.extend(0u16.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(self.cookie.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(length.to_be_bytes());
        self.stream.write_all(&head).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// The head of the next part of the answer.
    async fn part(&mut self) -> Result<Part, Error> {
        let part = match self.stream.read_u32().await? {
            STRUCTURED => {
                let flags = self.stream.read_u16().await?;
                let kind = self.stream.read_u16().await?;
                Part { last: flags & DONE != 0, kind, length: 0 }
            }
            SIMPLE => {
                let code = self.stream.read_u32().await?;
                return Err(match code {
                    0 => Error::Protocol("it answers without saying what"),
                    code => Error::Failed { code, why: "no reason is given".to_owned() },
                });
            }
            _ => return Err(Error::Protocol("its answer is none")),
        };
        if self.stream.read_u64().await? != self.cookie {
            return Err(Error::Protocol("it answers another request"));
        }
        Ok(Part { length: self.stream.read_u32().await? as usize, ..part })
    }

    /// Why there is no answer.
    async fn failure(&mut self, part: &Part) -> Error {
        if part.kind & part::ERROR == 0 || part.length < 6 || part.length > LARGEST_OPTION {
            return Error::Protocol("a part of its answer has a form that was not asked for");
        }
        let mut told = vec![0; part.length];
        if let Err(error) = self.stream.read_exact(&mut told).await {
            return error.into();
        }
        let code = u32::from_be_bytes([told[0], told[1], told[2], told[3]]);
        let length = usize::from(u16::from_be_bytes([told[4], told[5]]));
        let why = told[6..].get(..length).unwrap_or_default();
        Error::Failed { code, why: String::from_utf8_lossy(why).into_owned() }
    }

    /// Sends an option and returns the answers before the one that accepts it.
    async fn option(&mut self, option: u32, what: &'static str, data: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let length = u32::try_from(data.len()).map_err(|_| Error::Protocol("an option is too long"))?;
        let mut asked = Vec::with_capacity(data.len() + 16);
        asked.extend(OPTION.to_be_bytes());
        asked.extend(option.to_be_bytes());
        asked.extend(length.to_be_bytes());
        asked.extend(data);
        self.stream.write_all(&asked).await?;
        self.stream.flush().await?;
        let mut answers = Vec::new();
        loop {
            if self.stream.read_u64().await? != OPTION_REPLY || self.stream.read_u32().await? != option {
                return Err(Error::Protocol("it answers another option"));
            }
            let kind = self.stream.read_u32().await?;
            let length = self.stream.read_u32().await? as usize;
            if length > LARGEST_OPTION || answers.len() == MOST_ANSWERS {
                return Err(Error::Protocol("its answer to an option is too long"));
            }
            let mut told = vec![0; length];
            self.stream.read_exact(&mut told).await?;
            match kind {
                said::ACK => return Ok(answers),
                kind if kind & said::ERROR != 0 => {
                    let why = match told.is_empty() {
                        true => format!("error {}", kind & !said::ERROR),
                        false => String::from_utf8_lossy(&told).into_owned(),
                    };
                    return Err(Error::Refused { what, why });
                }
                kind => answers.push((kind, told)),
            }
        }
    }

    async fn open_contexts(&mut self, export: &str, contexts: &[&str]) -> Result<Vec<u32>, Error> {
        let mut data = text(export);
        data.extend(u32::try_from(contexts.len()).unwrap_or_default().to_be_bytes());
        data.extend(contexts.iter().flat_map(|context| text(context)));
        let answers = self.option(SET_META_CONTEXT, "the contexts", &data).await?;
        let granted: Vec<(u32, &[u8])> = answers
            .iter()
            .filter(|(kind, told)| *kind == said::CONTEXT && told.len() >= 4)
            .map(|(_, told)| (u32::from_be_bytes([told[0], told[1], told[2], told[3]]), &told[4..]))
            .collect();
        let number = |context: &&str| {
            let found = granted.iter().find(|(_, name)| *name == context.as_bytes()).map(|(number, _)| *number);
            found.ok_or_else(|| Error::Refused { what: "a context", why: format!("there is no {context}") })
        };
        contexts.iter().map(number).collect()
    }

    async fn go(&mut self, export: &str) -> Result<u64, Error> {
        let mut data = text(export);
        // No more than it says by itself.
        data.extend(0u16.to_be_bytes());
        let answers = self.option(GO, "the export", &data).await?;
        let about = answers.iter().find(|(kind, told)| *kind == said::INFO && told.len() == 12 && told[..2] == [0, 0]);
        let size = about.and_then(|(_, told)| Some(u64::from_be_bytes(told[2..10].try_into().ok()?)));
        // Offsets beyond this would not be offsets of a file.
        size.filter(|size| i64::try_from(*size).is_ok())
            .ok_or(Error::Protocol("it does not say how long the export is"))
    }
}

/// A text as options have it.
fn text(text: &str) -> Vec<u8> {
    let mut out = u32::try_from(text.len()).unwrap_or_default().to_be_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// Where `length` bytes from `from` on lie in what was asked for.
fn place(from: u64, length: usize, offset: u64, asked: usize) -> Result<std::ops::Range<usize>, Error> {
    let at = from.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
    let end = at.and_then(|at| at.checked_add(length)).filter(|end| *end <= asked);
    at.zip(end).map(|(at, end)| at..end).ok_or(Error::Protocol("it sent bytes that were not asked for"))
}

/// What is described, from `offset` on and no further than `length`.
fn extents(described: &[u8], offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
    let (mut list, mut at, end) = (Vec::new(), offset, offset + length);
    for pair in described.as_chunks::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *pair;
        let (length, flags) = (u64::from(u32::from_be_bytes([a, b, c, d])), u32::from_be_bytes([e, f, g, h]));
        if length == 0 {
            return Err(Error::Protocol("it describes blocks without a length"));
        }
        // The last one may be longer than what was asked about.
        let length = length.min(end - at);
        if length == 0 {
            break;
        }
        append(&mut list, Extent { offset: at, length, flags });
        at += length;
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
