//! Images of an OpenStack cloud: its identity service gives a token and says where images are, its image service gives the bytes.
//!
//! ```text
//!  POST v3/auth/tokens ─▶ token, catalog ─▶ GET v2/images/ID/file, by ranges
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::Url;

use super::connection::Connection;
use super::http::address;
use super::origin::{Credentials, Later, Origin};
use super::remote::Remote;
use super::{Error, Source};

/// A catalog of a large cloud is some ten thousand lines.
const LIMIT: usize = 8 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const GIVEN: HeaderName = HeaderName::from_static("x-subject-token");
const SHOWN: HeaderName = HeaderName::from_static("x-auth-token");

/// What the API says about an image of a cloud.
#[derive(Clone, Debug, Default)]
pub struct CloudImage {
    /// The identity service: `https://cloud:5000/v3`.
    pub identity: String,
    /// The image's identity.
    pub image: String,
    /// Who asks, by the keys of the secret: `authType`, `username`, `password`, `projectName`, …
    pub login: BTreeMap<String, String>,
}

/// Asks the cloud for the image. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the credentials are not complete, the cloud does not know them, or has no such image for them.
pub async fn openstack(image: &CloudImage, connection: &Connection) -> Result<impl Source + use<>, Error> {
    let login = Login(&image.login);
    let desk = tokens(&image.identity)?;
    let wrong = |why: String| Error::Credentials { url: desk.to_string(), why };
    let wanted = login.request().map_err(wrong)?.to_string();
    let origin = Origin::new(connection, desk.clone(), HeaderMap::new(), Arc::new(HeaderMap::new()))?;
    let account = Account { desk: origin, wanted, token: Mutex::new(None) };
    let catalog = account.ask().await?;
    let base = endpoint(&catalog, login.get("regionName"), login.get("availability").unwrap_or("public"))
        .map_err(Error::Image)?;
    let base = base.trim_end_matches('/').trim_end_matches("/v2");
    let url = address(&format!("{base}/v2/images/{}/file", image.image))?;
    Remote::probe(Origin::new(connection, url, HeaderMap::new(), Arc::new(account))?).await
}

/// Where tokens are given, whichever version of the service is named.
fn tokens(identity: &str) -> Result<Url, Error> {
    let mut url = address(identity)?;
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/v3").or_else(|| path.strip_suffix("/v2.0")).unwrap_or(path);
    let path = format!("{path}/v3/auth/tokens");
    url.set_path(&path);
    Ok(url)
}

/// The keys of a secret.
struct Login<'a>(&'a BTreeMap<String, String>);

impl Login<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn needed(&self, key: &str) -> Result<&str, String> {
        self.get(key).ok_or_else(|| format!("the secret has no key {key:?}"))
    }

    /// The domain that these keys name, or else the cloud's default.
    fn domain(&self, id: &str, name: &str) -> Value {
        let either = |id: &str, name: &str| {
            self.get(id).map(|id| json!({ "id": id })).or_else(|| self.get(name).map(|name| json!({ "name": name })))
        };
        let common = either(id, name).or_else(|| either("domainID", "domainName"));
        common.unwrap_or_else(|| json!({ "id": self.get("defaultDomain").unwrap_or("default") }))
    }

    fn user(&self) -> Result<Value, String> {
        if let Some(id) = self.get("userID") {
            return Ok(json!({ "id": id }));
        }
        let name = self.needed("username")?;
        Ok(json!({ "name": name, "domain": self.domain("userDomainID", "userDomainName") }))
    }

    /// The request for a token.
    fn request(&self) -> Result<Value, String> {
        let (method, proof) = match self.get("authType").unwrap_or("password") {
            "password" => {
                let mut user = self.user()?;
                user["password"] = json!(self.needed("password")?);
                ("password", json!({ "user": user }))
            }
            "token" => ("token", json!({ "id": self.needed("token")? })),
            "applicationcredential" => {
                let secret = self.needed("applicationCredentialSecret")?;
                let proof = match self.get("applicationCredentialID") {
                    Some(id) => json!({ "id": id, "secret": secret }),
                    None => {
                        let name = self.needed("applicationCredentialName")?;
                        json!({ "name": name, "user": self.user()?, "secret": secret })
                    }
                };
                ("application_credential", proof)
            }
            other => {
                return Err(format!(
                    "authType is {other:?}, and it has to be password, token or applicationcredential"
                ));
            }
        };
        let mut auth = json!({ "identity": { "methods": [method], (method): proof } });
        // Such a credential is of one project already.
        if method != "application_credential"
            && let Some(scope) = self.scope()
        {
            auth["scope"] = scope;
        }
        Ok(json!({ "auth": auth }))
    }

    fn scope(&self) -> Option<Value> {
        if let Some(id) = self.get("projectID") {
            return Some(json!({ "project": { "id": id } }));
        }
        if let Some(name) = self.get("projectName") {
            let domain = self.domain("projectDomainID", "projectDomainName");
            return Some(json!({ "project": { "name": name, "domain": domain } }));
        }
        if self.get("systemScope").is_some() {
            return Some(json!({ "system": { "all": true } }));
        }
        let named = self.get("domainID").or(self.get("domainName")).is_some();
        named.then(|| json!({ "domain": self.domain("domainID", "domainName") }))
    }
}

#[derive(Deserialize)]
struct Granted {
    token: Token,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    catalog: Vec<Service>,
}

#[derive(Deserialize)]
struct Service {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    interface: String,
    region: Option<String>,
    region_id: Option<String>,
    url: String,
}

/// Where the image service is.
fn endpoint<'a>(catalog: &'a [Service], region: Option<&str>, interface: &str) -> Result<&'a str, String> {
    let images = catalog.iter().filter(|service| service.kind == "image");
    let mut reached = images.flat_map(|service| &service.endpoints).filter(|one| one.interface == interface);
    let here = |one: &&Endpoint| {
        let names = [one.region.as_deref(), one.region_id.as_deref()];
        region.is_none_or(|region| names.contains(&Some(region)))
    };
    let found = reached.find(here).map(|one| one.url.as_str());
    let place = region.map(|region| format!(" in region {region:?}")).unwrap_or_default();
    found.ok_or_else(|| format!("the cloud's catalog names no {interface} endpoint of the image service{place}"))
}

/// Somebody, and the token they were last given.
struct Account {
    desk: Origin,
    wanted: String,
    token: Mutex<Option<HeaderValue>>,
}

impl Account {
    /// Gets a token and keeps it; returns what comes with it.
    async fn ask(&self) -> Result<Vec<Service>, Error> {
        let (token, catalog) = self.exchange().await?;
        *self.token.lock().await = Some(token);
        Ok(catalog)
    }

    async fn exchange(&self) -> Result<(HeaderValue, Vec<Service>), Error> {
        let (headers, text) = self.desk.exchange(JSON, self.wanted.clone(), LIMIT).await?;
        let document = |source: Box<dyn std::error::Error + Send + Sync>| Error::Document {
            url: self.desk.name(),
            what: "a token",
            source,
        };
        let mut token = headers.get(GIVEN).cloned().ok_or_else(|| document("it has no X-Subject-Token".into()))?;
        token.set_sensitive(true);
        let granted: Granted = serde_json::from_slice(&text).map_err(|error| document(error.into()))?;
        Ok((token, granted.token.catalog))
    }
}

impl Credentials for Account {
    fn headers<'a>(&'a self, _: &'a Method, _: &'a Url) -> Later<'a, Result<HeaderMap, Error>> {
        Box::pin(async {
            let mut token = self.token.lock().await;
            let value = match &*token {
                Some(value) => value.clone(),
                None => token.insert(self.exchange().await?.0).clone(),
            };
            Ok(HeaderMap::from_iter([(SHOWN, value)]))
        })
    }

    /// A token may end while the image is fetched; the next one is asked for.
    fn refused<'a>(&'a self, status: StatusCode, _: &'a HeaderMap) -> Later<'a, Result<bool, Error>> {
        Box::pin(async move { Ok(status == StatusCode::UNAUTHORIZED && self.token.lock().await.take().is_some()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(login: Value, expect: Result<Value, &str>) {
        let login = serde_json::from_value(login).unwrap();
        let found = Login(&login).request().map(|found| found["auth"].clone());
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn password_token_and_application_credentials_authenticate() {
        let user = json!({ "name": "me", "domain": { "id": "default" }, "password": "p" });
        let password = json!({ "methods": ["password"], "password": { "user": user } });
        check(json!({ "username": "me", "password": "p" }), Ok(json!({ "identity": password })));
        let project = json!({ "project": { "name": "work", "domain": { "name": "Ours" } } });
        let mut domained = password;
        domained["password"]["user"]["domain"] = json!({ "name": "Ours" });
        check(
            json!({ "authType": "password", "username": "me", "password": "p", "projectName": "work", "domainName": "Ours" }),
            Ok(json!({ "identity": domained, "scope": project })),
        );
        check(
            json!({ "authType": "token", "token": "t", "projectID": "1" }),
            Ok(
                json!({ "identity": { "methods": ["token"], "token": { "id": "t" } }, "scope": { "project": { "id": "1" } } }),
            ),
        );
        let credential = json!({ "id": "c", "secret": "s" });
        check(
            json!({ "authType": "applicationcredential", "applicationCredentialID": "c", "applicationCredentialSecret": "s", "projectID": "1" }),
            Ok(json!({ "identity": { "methods": ["application_credential"], "application_credential": credential } })),
        );
        check(json!({ "username": "me" }), Err("the secret has no key \"password\""));
        check(
            json!({ "authType": "magic" }),
            Err("authType is \"magic\", and it has to be password, token or applicationcredential"),
        );
    }

    #[test]
    fn tokens_are_given_at_the_third_version() {
        for identity in ["https://c:5000", "https://c:5000/v3/", "https://c:5000/v2.0"] {
            assert_eq!(tokens(identity).unwrap().as_str(), "https://c:5000/v3/auth/tokens");
        }
        assert_eq!(tokens("https://c/identity/v3").unwrap().as_str(), "https://c/identity/v3/auth/tokens");
    }

    #[test]
    fn the_image_service_is_where_the_catalog_says() {
        let place = |region: &str, interface: &str| json!({ "interface": interface, "region_id": region, "url": format!("http://{region}.{interface}") });
        let places = [place("one", "public"), place("two", "public"), place("two", "internal")];
        let catalog = json!([{ "type": "identity" }, { "type": "image", "endpoints": places }]);
        let catalog: Vec<Service> = serde_json::from_value(catalog).unwrap();
        assert_eq!(endpoint(&catalog, None, "public"), Ok("http://one.public"));
        assert_eq!(endpoint(&catalog, Some("two"), "internal"), Ok("http://two.internal"));
        let why = endpoint(&catalog, Some("three"), "public").unwrap_err();
        assert_eq!(why, "the cloud's catalog names no public endpoint of the image service in region \"three\"");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    /// A catalog of the words that are looked for.
    fn catalog() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "image",
            "identity",
            "public",
            "internal",
            "one",
            "two",
            "https://c/v2/",
            "//",
            "",
        ]);
        let place = (word.clone(), proptest::option::of(word.clone()), word.clone());
        let place =
            place.prop_map(|(interface, region, url)| json!({ "interface": interface, "region": region, "url": url }));
        let service = (word, proptest::collection::vec(place, 0..4));
        let service = service.prop_map(|(kind, endpoints)| json!({ "type": kind, "endpoints": endpoints }));
        proptest::collection::vec(service, 0..4).prop_map(|catalog| json!({ "token": { "catalog": catalog } }))
    }

    /// An endpoint that the catalog names, or none; and an address that can be asked, or none.
    fn judge(answer: &[u8]) -> Result<(), TestCaseError> {
        let Ok(granted) = serde_json::from_slice::<Granted>(answer) else { return Ok(()) };
        for region in [None, Some("one")] {
            if let Ok(found) = endpoint(&granted.token.catalog, region, "public") {
                let named = granted.token.catalog.iter().flat_map(|service| &service.endpoints);
                prop_assert!(named.clone().any(|one| one.url == found && one.interface == "public"));
                if let Ok(url) = address(&format!("{found}/v2/images/id/file")) {
                    prop_assert!(matches!(url.scheme(), "http" | "https"));
                }
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_answer_of_an_identity_service_is_judged(answer in proptest::collection::vec(any::<u8>(), 0..200)) {
            judge(&answer)?;
        }

        #[test]
        fn a_catalog_that_was_changed_is_one_or_none(catalog in catalog(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut answer = catalog.to_string().into_bytes();
            prop_assert!(serde_json::from_slice::<Granted>(&answer).is_ok());
            judge(&answer)?;
            let at = at.index(answer.len());
            answer[at] = byte;
            judge(&answer)?;
        }
    }
}
