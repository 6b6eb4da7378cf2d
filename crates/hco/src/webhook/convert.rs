//! ConversionReviews: objects in one version in, the same in another out.

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::CONVERT;
use crate::conversion;

#[derive(Deserialize)]
struct Review {
    request: Option<Request>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    objects: Vec<Value>,
}

pub(super) fn route(router: Router) -> Router {
    router.route(
        CONVERT,
        post(async |body: Bytes| match answer(&body) {
            Ok(answer) => Json(answer).into_response(),
            Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
        }),
    )
}

/// The review that answers the one in `body`.
///
/// # Errors
/// A sentence for the caller when it is none.
fn answer(body: &[u8]) -> Result<Value, String> {
    let review: Review = serde_json::from_slice(body).map_err(|error| format!("not a ConversionReview: {error}"))?;
    let request = review.request.ok_or("the ConversionReview holds no request")?;
    let convert = |object| conversion::convert(object, &request.desired_api_version);
    let converted: Result<Vec<Value>, String> = request.objects.into_iter().map(convert).collect();
    let response = match converted {
        Ok(objects) => json!({ "uid": request.uid, "result": { "status": "Success" }, "convertedObjects": objects }),
        Err(message) => json!({ "uid": request.uid, "result": { "status": "Failure", "message": message } }),
    };
    Ok(json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response }))
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
mod tests {
    use super::*;

    fn review(objects: Value) -> Vec<u8> {
        let request = json!({ "uid": "u", "desiredAPIVersion": "hco.kubevirt.io/v1", "objects": objects });
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request })
            .to_string()
            .into()
    }

    #[test]
    fn all_objects_are_converted_or_none() {
        let object = |version: &str| json!({ "apiVersion": version, "spec": { "evictionStrategy": "None" } });
        let found = answer(&review(json!([object("hco.kubevirt.io/v1beta1")]))).unwrap();
        let expect = json!({ "virtualization": { "evictionStrategy": "None" } });
        assert_eq!(found["response"]["convertedObjects"][0]["spec"], expect);
        let found = answer(&review(json!([object("hco.kubevirt.io/v1beta1"), object("v1")]))).unwrap();
        assert_eq!(found["response"]["result"]["status"], "Failure");
        assert!(answer(b"{}").is_err() && answer(b"").is_err());
    }
}
