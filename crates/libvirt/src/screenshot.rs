//! A picture of the screen, which libvirt sends as a stream.
//!
//! ```text
//!   call  ----------------------->
//!         <--- reply: media type      the reply and the data come in any order
//!         <--- continue: data ...
//!         <--- continue: nothing      the end
//!   ok    ----------------------->
//!         <--- ok
//! ```

use crate::client::Client;
use crate::packet::{Kind, REMOTE, Status};
use crate::wire::remote;
use crate::xdr::{Reader, Writer};
use crate::{Error, Result};

/// A larger picture than any emulated screen gives.
const LIMIT: usize = 64 << 20;

/// The picture and its media type. `domain` is how the call names the domain.
pub(crate) fn take(client: &Client, domain: Writer) -> Result<(Vec<u8>, String)> {
    const CALL: &str = "taking a screenshot";
    let (first_screen, flags) = (0, 0);
    let exchange = client.begin(CALL, (REMOTE, remote::DOMAIN_SCREENSHOT), domain.u32(first_screen).u32(flags))?;
    let mut kind = None;
    let mut picture = Vec::new();
    let mut complete = false;
    while kind.is_none() || !complete {
        let packet = exchange.next()?;
        match (packet.kind, packet.status) {
            (Kind::Stream, Status::Continue) if packet.payload.is_empty() => complete = true,
            (Kind::Stream, Status::Continue) if picture.len() + packet.payload.len() > LIMIT => {
                // Aborts the stream; what is still on its way is dropped.
                exchange.send(Kind::Stream, Status::Error, Vec::new())?;
                return Err(Error::TooLarge { what: "the screenshot", limit: LIMIT });
            }
            (Kind::Stream, Status::Continue) => picture.extend(packet.payload),
            (Kind::Stream, _) => complete = true,
            _ => {
                let answer = Reader::new(packet.payload).optional(Reader::text);
                kind = Some(answer.map_err(|source| Error::Answer { call: CALL, source })?.unwrap_or_default());
            }
        }
    }
    // All has arrived: the daemon only has to hear that it may forget the stream, and its word on that changes nothing.
    exchange.send(Kind::Stream, Status::Ok, Vec::new())?;
    Ok((picture, kind.unwrap_or_default()))
}
