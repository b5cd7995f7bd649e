//! How tokens are verified.

use super::super::document::Value;
use super::super::identify::{Identify, Source};
use super::super::{Jwt, fields};
use super::reader::{Fields, Reader, spelled_out};

impl Reader<'_> {
    pub(super) fn jwt(&mut self, fields: Option<&Fields<'_>>, identify: &Identify) -> Option<Jwt> {
        let is_jwt = |source: &Source| matches!(source, Source::Jwt(_));
        let used =
            identify.caller.iter().any(|(source, _)| is_jwt(source)) || identify.plan.iter().any(is_jwt);
        let node = fields.and_then(|fields| fields.get("jwt"));
        let Some(node) = node else {
            if used
                && let Some(place) =
                    fields.and_then(|fields| fields.place_of("caller").or(fields.place_of("plan")))
            {
                self.error_with(
                    place,
                    "a claim of a token is asked for, and nothing says how tokens are verified",
                    "add `jwt: { jwks_file: keys.json }` to `identify`",
                );
            }
            return None;
        };
        let fields = self.fields(node, "`jwt`", fields::JWT)?;
        const KEYS: [&str; 3] = ["key_file", "jwks_file", "secret_env"];
        if fields.present(&KEYS).len() != 1 {
            self.error(node.place, format!("tokens are verified by one of {}", spelled_out(&KEYS)));
        }
        for name in ["key_file", "jwks_file"] {
            if let Some(node) = fields.get(name)
                && let Value::Text(path) = &node.value
                && let Err(problem) = self.surroundings.file(path.trim())
            {
                self.error(node.place, problem);
            }
        }
        let header = fields.get("header").and_then(|node| self.header_name(node));
        let mut text = |name: &str| {
            self.text(fields.get(name)?, &format!("`{name}`")).map(|text| text.trim().to_owned())
        };
        let mut jwt = Jwt {
            key_file: text("key_file"),
            jwks_file: text("jwks_file"),
            secret_env: text("secret_env"),
            algorithms: Vec::new(),
            header,
            issuer: text("issuer"),
            audience: text("audience"),
        };
        if let Some(node) = fields.get("algorithms") {
            for node in self.some(node) {
                jwt.algorithms
                    .extend(self.word(node, "algorithm", fields::JWT_ALGORITHMS).map(str::to_owned));
            }
        }
        if jwt.key_file.is_some() && jwt.algorithms.is_empty() {
            self.error_with(node.place, "which algorithm is the key for?", "add `algorithms: [RS256]`");
        }
        if jwt.algorithms.iter().any(|name| name.starts_with("HS")) && jwt.secret_env.is_none() {
            self.error(node.place, "HS256 and its like need a shared secret: `secret_env`");
        }
        if jwt.secret_env.is_some() && jwt.algorithms.iter().any(|name| !name.starts_with("HS")) {
            self.error(node.place, "with a shared secret there are only HS256, HS384 and HS512");
        }
        if !used {
            self.warn(node.place, "no claim of a token is asked for", "add `jwt: sub` to `caller`");
        }
        Some(jwt)
    }
}
