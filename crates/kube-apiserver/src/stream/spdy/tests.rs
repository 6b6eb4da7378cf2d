//! The codec by data, and against arbitrary bytes.

use futures::{SinkExt, StreamExt};
use proptest::prelude::*;

use super::session::Session;
use super::*;

fn frames() -> Vec<Frame> {
    vec![
        Frame::SynStream { id: 1, fin: false, headers: vec![("streamtype".into(), "error".into())] },
        Frame::SynStream {
            id: 3,
            fin: true,
            headers: vec![("streamtype".into(), "data".into()), ("port".into(), "80".into())],
        },
        Frame::SynReply { id: 1, fin: false, headers: Vec::new() },
        Frame::Data { id: 1, fin: false, data: Bytes::from_static(b"hello") },
        Frame::Data { id: 1, fin: true, data: Bytes::new() },
        Frame::Ping(7),
        Frame::Reset { id: 3, status: 5 },
        Frame::GoAway,
    ]
}

fn decode(bytes: &[u8], step: usize) -> Result<Vec<Frame>, SpdyError> {
    let mut decoder = Decoder::default();
    let mut out = Vec::new();
    for chunk in bytes.chunks(step.max(1)) {
        decoder.feed(chunk);
        while let Some(frame) = decoder.next_frame()? {
            out.push(frame);
        }
    }
    Ok(out)
}

#[test]
fn encoded_frames_decode_to_the_same() {
    let mut encoder = Encoder::default();
    let bytes: Vec<u8> = frames().iter().flat_map(|f| encoder.encode(f).unwrap()).collect();
    assert_eq!(decode(&bytes, bytes.len()).unwrap(), frames());
}

#[test]
fn bounds() {
    let check = |bytes: &[u8], expect: SpdyError| assert_eq!(decode(bytes, 64).unwrap_err(), expect);
    check(&[0x80, 2, 0, 1, 0, 0, 0, 0], SpdyError::Version(2));
    check(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], SpdyError::TooLarge(0x00ff_ffff));
    check(&[0x80, 3, 0, 1, 0, 0, 0, 0], SpdyError::Truncated(1));
    check(&[0x80, 3, 0, 2, 0, 0, 0, 8, 0, 0, 0, 1, 9, 9, 9, 9], SpdyError::Headers);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048), step in 1_usize..64) {
        let _ = decode(&bytes, step);
    }

    #[test]
    fn arbitrary_header_blocks_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let mut frame = vec![0x80, 3, 0, 2, 0, 0];
        frame.extend_from_slice(&u16::try_from(bytes.len() + 4).unwrap().to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 1]);
        frame.extend_from_slice(&bytes);
        let _ = decode(&frame, 4096);
    }

    #[test]
    fn data_survives_any_fragmentation(data in prop::collection::vec(any::<u8>(), 1..4096), step in 1_usize..97) {
        let bytes = Encoder::default().encode(&Frame::Data { id: 5, fin: true, data: data.clone().into() }).unwrap();
        let mut got = Vec::new();
        let mut ends = 0;
        for frame in decode(&bytes, step).unwrap() {
            if let Frame::Data { id: 5, fin, data } = frame {
                got.extend_from_slice(&data);
                ends += u32::from(fin);
            }
        }
        prop_assert_eq!((got, ends), (data, 1));
    }
}

#[tokio::test]
async fn a_session_yields_streams_and_echoes_pings() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (read, write) = tokio::io::split(ours);
    let mut session = Session::start(
        tokio_util::io::ReaderStream::new(read),
        tokio_util::codec::FramedWrite::new(write, tokio_util::codec::BytesCodec::new()),
    );
    let (read, write) = tokio::io::split(theirs);
    let mut out = tokio_util::codec::FramedWrite::new(write, tokio_util::codec::BytesCodec::new());
    let mut back = tokio_util::io::ReaderStream::new(read);
    let mut encoder = Encoder::default();
    for frame in [
        Frame::SynStream { id: 1, fin: false, headers: vec![("streamType".into(), "stdin".into())] },
        Frame::Data { id: 1, fin: false, data: Bytes::from_static(b"abc") },
        Frame::Data { id: 1, fin: true, data: Bytes::new() },
        Frame::Ping(9),
    ] {
        out.send(encoder.encode(&frame).unwrap()).await.unwrap();
    }
    let mut stream = session.accept().await.unwrap();
    assert_eq!(headers::value(&stream.headers, "streamtype"), "stdin");
    assert_eq!(stream.incoming.recv().await.unwrap(), "abc");
    assert_eq!(stream.incoming.recv().await, None);
    assert!(stream.writer.write(Bytes::from_static(b"out")).await);
    stream.writer.finish().await;
    drop(stream);
    let mut decoder = Decoder::default();
    let mut got = Vec::new();
    while got.len() < 4 {
        decoder.feed(&back.next().await.unwrap().unwrap());
        while let Some(frame) = decoder.next_frame().unwrap() {
            got.push(frame);
        }
    }
    assert!(got.contains(&Frame::Ping(9)));
    assert!(got.contains(&Frame::Data { id: 1, fin: false, data: Bytes::from_static(b"out") }));
    session.close().await;
}
