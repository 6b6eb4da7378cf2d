//! Arbitrary bytes as what an NBD server says: the client ends when the server does, and returns what was asked for or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::{ALLOCATION, Client};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fuzz_target!(|bytes: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime.block_on(async {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let server = async {
            let _ = far.write_all(bytes).await;
            let _ = far.shutdown().await;
            let _ = far.read_to_end(&mut Vec::new()).await;
        };
        let client = async {
            let Ok(mut client) = Client::connect(near, "root", &[ALLOCATION]).await else { return };
            if let Ok(read) = client.read(0, 512).await {
                assert_eq!(read.len(), 512);
            }
            for extent in client.status(0, 4096).await.iter().flatten().flatten() {
                assert!(extent.length > 0 && extent.offset + extent.length <= 4096);
            }
        };
        tokio::join!(server, client);
    });
});
