//! Names that requests bring with them. What none can ever be called is a mistake; what is hardly meant is warned of.

use super::super::document::Node;
use super::super::mistakes::Place;
use super::reader::Reader;

impl Reader<'_> {
    /// The name of a header, in lower case.
    pub(super) fn header_name(&mut self, node: &Node) -> Option<String> {
        let name = self.text(node, "the name of a header")?;
        self.check_header(node.place, name).then(|| name.to_ascii_lowercase())
    }

    /// Whether a header can be called so.
    pub(super) fn check_header(&mut self, place: Place, name: &str) -> bool {
        let is_token = |name: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !name.is_empty() && name.bytes().all(is_plain)
        };
        if !is_token(name) {
            let meant = name.trim().trim_end_matches(':').trim_end();
            let help = match is_token(meant) {
                true => format!("write `{meant}`"),
                false => "it has letters, digits and `-`, and no spaces: x-api-key".to_owned(),
            };
            self.error_with(place, format!("no header can be called {name:?}"), help);
            return false;
        }
        if name.contains('*') {
            let message = format!("{name:?}: a `*` in the name of a header is a star");
            self.warn(place, message, "write the whole name; patterns are of values");
        }
        true
    }

    /// The name of a cookie.
    pub(super) fn cookie_name(&mut self, node: &Node) -> Option<String> {
        let name = self.text(node, "the name of a cookie")?;
        let ends = |c: char| matches!(c, '=' | ';') || c.is_control();
        if name.contains(ends) || name.trim() != name {
            let meant = name.split(ends).next().unwrap_or_default().trim();
            let help = match meant {
                "" => "it ends before the `=`: session".to_owned(),
                meant => format!("write `{meant}`"),
            };
            self.error_with(node.place, format!("no cookie can be called {name:?}"), help);
            return None;
        }
        Some(name.to_owned())
    }

    /// The name of a parameter. Anything can be escaped in one, and hardly anything is.
    pub(super) fn query_name(&mut self, node: &Node) -> Option<String> {
        let name = self.text(node, "the name of a parameter")?;
        if name.contains(['&', '=', '?', '#', '%']) || name.trim() != name {
            let message = format!("hardly any request has a parameter {name:?}");
            self.warn(node.place, message, "write its name alone, as it is when it is decoded: key");
        }
        Some(name.to_owned())
    }

    /// The name of a host, or a pattern of some.
    pub(super) fn host<'n>(&mut self, node: &'n Node) -> Option<&'n str> {
        let host = self.text(node, "a host")?;
        let behind = host.split_once("://").map_or(host, |(_, behind)| behind);
        // An address of IPv6 stands in brackets, as in requests.
        let end = match behind.starts_with('[') {
            true => behind.find(']').map(|at| at + 1),
            false => behind.find([':', '/']),
        };
        let (bare, rest) = end.and_then(|end| behind.split_at_checked(end)).unwrap_or((behind, ""));
        let mut help = format!("write `{bare}`");
        let problem = if behind.len() < host.len() {
            "has a scheme, and hosts have none"
        } else if host.parse::<std::net::Ipv6Addr>().is_ok() {
            help = format!("write '[{host}]'");
            "needs brackets, as it has them in requests"
        } else if rest.starts_with(':') {
            "has a port, and hosts are compared without it"
        } else if !rest.is_empty() {
            "has a path, and hosts have none"
        } else if host.ends_with('.') {
            help = format!("write `{}`", host.trim_end_matches('.'));
            "ends with a dot, and hosts are compared without it"
        } else if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            help = "write `api.example.com`".to_owned();
            "is no name of a host"
        } else {
            ""
        };
        if !problem.is_empty() {
            self.error_with(node.place, format!("{host:?} {problem}: no request can match it"), help);
            return None;
        }
        if !host.is_ascii() {
            let message = format!("{host:?} is not how requests name a host: they have ASCII only");
            self.warn(node.place, message, "write it as it is registered: xn--...");
        }
        Some(host)
    }

    /// What a header must be like.
    pub(super) fn header_value<'n>(&mut self, node: &'n Node) -> Option<&'n str> {
        let value = self.text(node, "what a header must be like")?;
        if value.trim() != value {
            let message = "spaces around values do not count, so no value is ever like this";
            self.error_with(node.place, message, format!("write '{}'", value.trim()));
            return None;
        }
        Some(value)
    }

    /// The name of a single caller, where names are whole.
    pub(super) fn whole_name(&mut self, place: Place, name: &str) {
        if name.contains('*') {
            self.warn(
                place,
                format!("{name:?} is one caller, whose name has a star in it: names are whole here"),
                "patterns are for `table`, and for conditions: `match: { header x-api-key: sk_* }`",
            );
        }
        if name.trim() != name {
            let help = format!("write `{}`", name.trim());
            self.warn(place, format!("{name:?} is hardly anybody: spaces around names do not count"), help);
        }
    }
}
