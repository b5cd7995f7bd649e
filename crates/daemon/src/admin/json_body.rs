//! Bodies of requests to the admin endpoint: one JSON object.

use std::fmt;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::problem;

/// What somebody says in JSON. What is none is told so in the way of all problems.
pub(super) struct Said(pub(super) Value);

/// A JSON object in which no key is there twice: readers differ in which of the two they take.
struct Object(serde_json::Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut entries: M) -> Result<Object, M::Error> {
                let mut object = serde_json::Map::new();
                while let Some((key, value)) = entries.next_entry::<String, Value>()? {
                    if object.contains_key(&key) {
                        return Err(serde::de::Error::custom(format_args!("the key {key:?} is there twice")));
                    }
                    object.insert(key, value);
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl<S: Send + Sync> FromRequest<S> for Said {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::from_request(request, state).await {
            Ok(Json(Object(said))) => Ok(Self(Value::Object(said))),
            Err(rejection) if rejection.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                Err(problem(rejection.status(), "say it in JSON, with `Content-Type: application/json`"))
            }
            Err(JsonRejection::JsonDataError(error)) => {
                Err(problem(StatusCode::BAD_REQUEST, &error.body_text()))
            }
            Err(rejection) => Err(problem(rejection.status(), &rejection.body_text())),
        }
    }
}
