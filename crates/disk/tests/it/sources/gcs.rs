//! Google's store, with and without an account.

use disk::source::{GcsObject, gcs};

use super::server::{Reply, Server};
use super::{chain, connection, read};

/// A key that was made for this test and opens nothing.
const KEY: &str = include_str!("../../../testdata/service-account.pem");

#[tokio::test]
async fn an_account_gets_a_token_and_another_when_it_has_expired() {
    let server = Server::start(|request| match (request.method.as_str(), request.header("authorization")) {
        ("POST", _) => {
            let granted = request
                .body
                .starts_with("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant%2Dtype%3Ajwt%2Dbearer&assertion=ey");
            let token = if request.number == 0 { "first" } else { "second" };
            match granted {
                true => Reply::new(
                    200,
                    format!(r#"{{"access_token": "{token}", "expires_in": 3600, "token_type": "Bearer"}}"#),
                ),
                false => Reply::new(400, ""),
            }
        }
        ("GET", "Bearer second") => Reply::file(request, b"object"),
        _ => Reply::new(401, ""),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials.json");
    let account = serde_json::json!({
        "type": "service_account", "client_email": "importer@project.iam.gserviceaccount.com",
        "private_key": KEY, "token_uri": server.url("/token"),
    });
    std::fs::write(&path, account.to_string()).unwrap();
    let object = GcsObject { url: server.url("/bucket/object"), account: Some(path.clone()) };
    let source = gcs(&object, &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), b"object");
    let methods: Vec<_> = server.seen().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["POST", "GET", "POST", "GET"]);

    std::fs::write(&path, r#"{"client_email": "x", "private_key": "no key"}"#).unwrap();
    let error = chain(&gcs(&object, &connection()).await.err().unwrap());
    assert!(error.contains("credentials.json is not the JSON key of a service account"), "{error}");
}

#[tokio::test]
async fn public_objects_need_no_account() {
    let server = Server::start(|request| match request.header("authorization") {
        "" => Reply::file(request, b"public"),
        _ => Reply::new(400, ""),
    })
    .await;
    let object = GcsObject { url: server.url("/bucket/object"), account: None };
    assert_eq!(read(gcs(&object, &connection()).await.unwrap(), 0).await.unwrap(), b"public");
}
