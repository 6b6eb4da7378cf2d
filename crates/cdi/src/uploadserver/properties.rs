//! What strangers send to an upload server, as far as libraries read it: frames of snappy, and forms.

use std::io::{Cursor, Write as _};

use axum::body::Body;
use axum::extract::{FromRequest as _, Multipart, Request};
use disk::source::{Links, unpack};
use proptest::prelude::*;

/// An archive of one file, in frames.
fn framed() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(700);
    archive.append_data(&mut header, "disk.img", &[7; 700][..]).unwrap();
    let mut frames = snap::write::FrameEncoder::new(Vec::new());
    frames.write_all(&archive.into_inner().unwrap()).unwrap();
    frames.into_inner().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_clone_stream_stays_in_the_volume(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..16), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = framed();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        let _ = unpack(Box::new(snap::read::FrameDecoder::new(Cursor::new(bytes))), &volume, Links::Anywhere, None);
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn reading_any_form_ends(
        parts in proptest::collection::vec(prop_oneof![
            Just("--limit\r\n".to_owned()), Just("--limit--".to_owned()), Just("\r\n\r\n".to_owned()), Just("\r\n".to_owned()),
            Just("Content-Disposition: form-data; name=\"file\"; filename=\"a\"".to_owned()), ".{0,30}",
        ], 0..16),
    ) {
        let sent = parts.concat();
        let request = Request::builder().header("content-type", "multipart/form-data; boundary=limit").body(Body::from(sent.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let received = runtime.block_on(async {
            let mut form = Multipart::from_request(request.unwrap(), &()).await.unwrap();
            let mut received = 0;
            while let Ok(Some(mut field)) = form.next_field().await {
                while let Ok(Some(piece)) = field.chunk().await {
                    received += piece.len();
                }
            }
            received
        });
        prop_assert!(received <= sent.len());
    }
}
