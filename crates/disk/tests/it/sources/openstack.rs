//! A cloud of ours whose services answer as OpenStack's do.

use disk::source::{CloudImage, openstack};
use serde_json::json;

use super::server::{Reply, Server};
use super::{chain, connection, pattern, read};

fn asked(server: &Server, password: &str) -> CloudImage {
    let login = [("username", "me"), ("password", password), ("projectName", "work"), ("regionName", "one")];
    CloudImage {
        identity: server.url("/identity/v3"),
        image: "disk-1".into(),
        login: login.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    }
}

/// The first token that is given has ended already when it is shown.
async fn cloud() -> Server {
    let images = Server::start(|request| match (request.target.as_str(), request.header("x-auth-token")) {
        ("/image/v2/images/disk-1/file", "token-0") => Reply::new(401, ""),
        ("/image/v2/images/disk-1/file", "") => Reply::new(403, ""),
        ("/image/v2/images/disk-1/file", _) => Reply::file(request, &pattern(5000)),
        _ => Reply::new(404, ""),
    })
    .await;
    Server::start(move |request| {
        let wanted: serde_json::Value = serde_json::from_str(&request.body).unwrap_or_default();
        let proof = &wanted["auth"]["identity"]["password"]["user"];
        let known = proof["name"] == "me" && proof["password"] == "secret";
        match (request.method.as_str(), request.target.as_str()) {
            ("POST", "/identity/v3/auth/tokens") if known => {
                let place = json!({ "interface": "public", "region": "one", "url": images.url("/image/v2/") });
                let catalog = json!([{ "type": "image", "name": "glance", "endpoints": [place] }]);
                let granted = json!({ "token": { "catalog": catalog } }).to_string();
                Reply::new(201, granted).header("x-subject-token", format!("token-{}", request.number))
            }
            ("POST", "/identity/v3/auth/tokens") => Reply::new(401, ""),
            _ => Reply::new(404, ""),
        }
    })
    .await
}

#[tokio::test]
async fn an_image_of_a_cloud_is_fetched_with_a_token() {
    let server = cloud().await;
    let source = openstack(&asked(&server, "secret"), &connection()).await.unwrap();
    assert_eq!(disk::Source::size(&source), Some(5000));
    assert_eq!(read(source, 1000).await.unwrap(), pattern(5000)[1000..]);
    assert_eq!(server.seen().len(), 2, "another token was asked for once the first had ended");
}

#[tokio::test]
async fn a_cloud_that_does_not_know_who_asks_says_so() {
    let server = cloud().await;
    let refused = async |image: CloudImage| chain(&openstack(&image, &connection()).await.err().unwrap());
    let error = refused(asked(&server, "guessed")).await;
    assert!(error.contains("expected status code 200, got 401"), "{error}");
    let error = refused(asked(&server, "")).await;
    assert!(error.contains("the secret has no key \"password\""), "{error}");
    let error = refused(CloudImage { image: "other".into(), ..asked(&server, "secret") }).await;
    assert!(error.contains("got 404"), "{error}");
}
