//! Who may look, and who may change something.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, Uri, header};

/// What is asked of those who come.
pub(super) struct Access {
    token: Option<String>,
}

/// What is answered, and why.
type Refused = (StatusCode, &'static str);

impl Access {
    pub(super) fn new(token: Option<String>) -> Self {
        Self { token: token.map(|token| token.trim().to_owned()) }
    }

    /// Why not, if not.
    pub(super) fn refuses(&self, method: &Method, headers: &HeaderMap) -> Option<Refused> {
        let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
        let host = text(header::HOST).unwrap_or_default();
        match &self.token {
            Some(token) => {
                // Of two lines another reader may take the other one.
                if headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
                    return Some((StatusCode::UNAUTHORIZED, "`Authorization` is sent twice: send it once"));
                }
                let credentials = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
                let given = credentials.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                let given = given.map(|(_, given)| given);
                if !given.is_some_and(|given| is_same(given.trim().as_bytes(), token.as_bytes())) {
                    return Some((
                        StatusCode::UNAUTHORIZED,
                        "say `Authorization: Bearer TOKEN` with the token of this door",
                    ));
                }
            }
            // A page of another site cannot make a browser ask here under a name of its own.
            None if !is_local(host) => {
                return Some((
                    StatusCode::FORBIDDEN,
                    "without a token this door is for localhost and its addresses only",
                ));
            }
            None => {}
        }
        // Nor can it have a browser change something in its user's name.
        if let Some(origin) = text(header::ORIGIN)
            && *method != Method::GET
        {
            let from =
                origin.parse::<Uri>().ok().and_then(|origin| Some(origin.authority()?.as_str().to_owned()));
            if from.is_none_or(|from| !from.eq_ignore_ascii_case(host)) {
                return Some((StatusCode::FORBIDDEN, "pages of other sites may change nothing here"));
            }
        }
        None
    }
}

/// Takes as long for every difference.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(
        token: Option<&str>,
        method: Method,
        fields: &[(header::HeaderName, &'static str)],
    ) -> Option<u16> {
        let headers =
            fields.iter().map(|(name, value)| (name.clone(), header::HeaderValue::from_static(value)));
        let access = Access::new(token.map(str::to_owned));
        access.refuses(&method, &headers.collect()).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn without_a_token_only_this_machine_may_ask() {
        for (host, status) in [
            ("127.0.0.1:8083", None),
            ("localhost:8083", None),
            ("[::1]:8083", None),
            ("LOCALHOST", None),
            ("evil.example:8083", Some(403)),
            ("", Some(403)),
        ] {
            assert_eq!(refused(None, Method::GET, &[(header::HOST, host)]), status, "{host}");
        }
    }

    #[test]
    fn with_a_token_nobody_may_who_has_it_not() {
        let ask = |value: &'static str| {
            refused(Some("0123456789"), Method::POST, &[(header::HOST, "a"), (header::AUTHORIZATION, value)])
        };
        assert_eq!(ask("Bearer 0123456789"), None);
        assert_eq!(ask("bearer 0123456789"), None, "schemes are the same in any case");
        for wrong in [
            "Bearer 0123456788",
            "Bearer 012345678",
            "Bearer 01234567890",
            "0123456789",
            "Basic 0123456789",
            "",
        ] {
            assert_eq!(ask(wrong), Some(401), "{wrong}");
        }
        assert_eq!(refused(Some("0123456789"), Method::GET, &[]), Some(401));
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        let ask = |method, origin| {
            refused(None, method, &[(header::HOST, "127.0.0.1:8083"), (header::ORIGIN, origin)])
        };
        assert_eq!(ask(Method::POST, "http://127.0.0.1:8083"), None);
        assert_eq!(ask(Method::POST, "http://evil.example"), Some(403));
        assert_eq!(ask(Method::POST, "null"), Some(403));
        assert_eq!(ask(Method::GET, "http://evil.example"), None);
    }
}
