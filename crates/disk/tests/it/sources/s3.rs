//! Object stores that speak S3.

use disk::source::{S3Object, s3};

use super::server::{Reply, Server};
use super::{connection, pattern, read};

#[tokio::test]
async fn requests_are_signed_each_anew() {
    let server = Server::start(|request| {
        let signed = request.header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=key/")
            && request.header("authorization").contains("/us-east-1/s3/aws4_request, SignedHeaders=host;")
            && request.header("x-amz-date").len() == 16
            && request.header("host").starts_with("127.0.0.1:");
        match (signed, request.number) {
            (false, _) => Reply::new(403, "AccessDenied"),
            (true, 0) => Reply::file(request, &pattern(900)).header("etag", "\"e\"").cut(100),
            (true, _) => Reply::file(request, &pattern(900)).header("etag", "\"e\""),
        }
    })
    .await;
    let key = Some(("key".to_owned(), "secret".to_owned()));
    let object = S3Object { url: server.url("/bucket/a disk.img"), key };
    let source = s3(&object, &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), pattern(900));
    assert_eq!(server.seen()[0].target, "/bucket/a%20disk.img");
    assert_eq!(server.seen().len(), 2);
    let anonymous = s3(&S3Object { key: None, ..object }, &connection()).await.err().unwrap();
    assert_eq!(anonymous.to_string(), "expected status code 200, got 403. Status: 403 Forbidden");
}

#[tokio::test]
async fn a_bucket_elsewhere_is_asked_for_in_its_region() {
    let server = Server::start(|request| match request.header("authorization").contains("/eu-central-1/s3/") {
        true => Reply::file(request, b"object"),
        false => Reply::new(400, "").header("x-amz-bucket-region", "eu-central-1"),
    })
    .await;
    let object = S3Object { url: server.url("/bucket/key"), key: Some(("key".into(), "secret".into())) };
    let source = s3(&object, &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), b"object");
    assert_eq!(server.seen().len(), 2);
}
