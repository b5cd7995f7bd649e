//! Which requests something is for.

use std::borrow::Cow;

use std::fmt;

use super::address::Networks;
use super::identify::usual;
use super::path::PathPattern;
use super::plan::Request;

/// What must be so of a request. Of each kind one is enough, all kinds must agree, and nothing of `not` may hold. Where
/// nothing is said, everything will do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Condition {
    pub(crate) methods: Vec<String>,
    pub(crate) paths: Vec<PathPattern>,
    pub(crate) headers: Vec<(String, Glob)>,
    pub(crate) hosts: Vec<Glob>,
    pub(crate) classes: Vec<usize>,
    pub(crate) plans: Vec<usize>,
    pub(crate) networks: Option<Networks>,
    pub(crate) not: Vec<Condition>,
    /// Whether only methods, classes, plans and paths are asked for.
    pub(crate) is_plain: bool,
    /// Methods for which it never holds, as [`method_bit`] has them.
    pub(crate) excluded: u8,
}

/// A bit for each of the commonest methods, and one for all others.
pub(crate) fn method_bit(method: &str) -> u8 {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let place = KNOWN.iter().position(|known| known.eq_ignore_ascii_case(method));
    place.map_or(OTHER_METHODS, |place| 1 << place)
}

/// The bit of methods that have none of their own.
const OTHER_METHODS: u8 = 1 << 7;

/// Text in which `*` stands for anything, in any case of letters if that was asked for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    parts: Vec<String>,
    any_case: bool,
}

impl fmt::Debug for Glob {
    /// What a header must be like may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Glob").finish_non_exhaustive()
    }
}

impl Glob {
    pub(crate) fn new(text: &str) -> Self {
        Self { parts: text.split('*').map(str::to_owned).collect(), any_case: false }
    }

    pub(crate) fn in_any_case(text: &str) -> Self {
        Self { any_case: true, ..Self::new(&text.to_ascii_lowercase()) }
    }

    /// Whether it stands for more than itself.
    pub(crate) fn is_pattern(&self) -> bool {
        self.parts.len() > 1
    }

    /// How much of it stands for itself.
    pub(crate) fn literal_len(&self) -> usize {
        self.parts.iter().map(String::len).sum()
    }

    /// Spaces around the text do not count.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        self.is_like(text.trim_ascii())
    }

    pub(crate) fn is_like(&self, text: &[u8]) -> bool {
        match self.parts.as_slice() {
            // Nearly all of them are beginnings.
            [first, last] if last.is_empty() && !self.any_case => text.starts_with(first.as_bytes()),
            _ => self.is_like_at_length(text),
        }
    }

    fn is_like_at_length(&self, text: &[u8]) -> bool {
        let lower;
        let mut rest = match self.any_case && text.iter().any(u8::is_ascii_uppercase) {
            true => {
                lower = text.to_ascii_lowercase();
                lower.as_slice()
            }
            false => text,
        };
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|only| rest == only.as_bytes());
        };
        match rest.strip_prefix(first.as_bytes()) {
            Some(behind) => rest = behind,
            None => return false,
        }
        for part in middle {
            // Two stars are one.
            if part.is_empty() {
                continue;
            }
            // The first that fits leaves the most for what follows.
            let Some(at) = rest.windows(part.len()).position(|some| some == part.as_bytes()) else {
                return false;
            };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        rest.ends_with(last.as_bytes())
    }
}

impl Condition {
    #[inline(always)]
    pub(crate) fn holds(&self, request: &Request<'_, '_>) -> bool {
        self.excluded & request.method == 0 && self.holds_for_method(request)
    }

    fn holds_for_method(&self, request: &Request<'_, '_>) -> bool {
        let asked = request.facts.method;
        let is_method = |method: &String| method == asked || method.eq_ignore_ascii_case(asked);
        let is_path = |path: &PathPattern| path.is_all() || path.matches(request.path());
        // Whoever has a bit of its own is known by that.
        (request.method != OTHER_METHODS || self.methods.is_empty() || self.methods.iter().any(is_method))
            && (self.classes.is_empty() || request.class.is_some_and(|class| self.classes.contains(&class)))
            && (self.plans.is_empty() || request.plan.is_some_and(|plan| self.plans.contains(&plan)))
            && (self.paths.is_empty() || self.paths.iter().any(is_path))
            && (self.is_plain || self.holds_otherwise(request))
    }

    /// What few conditions ask for.
    #[inline(never)]
    fn holds_otherwise(&self, request: &Request<'_, '_>) -> bool {
        let facts = request.facts;
        // Headers are of as many kinds as there are names.
        let is_header = |(name, _): &(String, Glob)| {
            let matches =
                |value: &[u8]| self.headers.iter().any(|(other, glob)| other == name && glob.matches(value));
            let wanted = |value: &[u8]| {
                matches(value) || matches!(usual(name, value), Cow::Owned(spelled) if matches(&spelled))
            };
            match request.header {
                Some((known, value)) if known == name => wanted(value),
                _ => facts.any_header(name, wanted),
            }
        };
        (self.hosts.is_empty() || self.hosts.iter().any(|host| host.matches(host_name(facts.host))))
            && self.headers.iter().all(is_header)
            && self
                .networks
                .as_ref()
                .is_none_or(|networks| request.address.is_some_and(|address| networks.contains(address)))
            && !self.not.iter().any(|not| not.holds(request))
    }

    /// Adds a method. GET covers HEAD as well: servers answer HEAD with the handler of GET and do the same work for it.
    pub(crate) fn add_method(&mut self, method: &str) {
        let covered: &[&str] = if method == "GET" { &["GET", "HEAD"] } else { &[method] };
        for method in covered {
            if !self.methods.iter().any(|known| known == method) {
                self.methods.push((*method).to_owned());
            }
        }
    }

    /// The same, ready to be asked.
    pub(crate) fn ready(mut self) -> Self {
        self.is_plain = self.hosts.is_empty()
            && self.headers.is_empty()
            && self.networks.is_none()
            && self.not.is_empty();
        self.excluded = match self.methods.is_empty() {
            true => 0,
            false => !self.methods.iter().fold(0, |bits, method| bits | method_bit(method)),
        };
        self
    }

    /// The pattern under which a path is counted, where paths are counted by their patterns.
    pub(crate) fn pattern(&self, path: &str) -> Option<&PathPattern> {
        self.paths.iter().find(|pattern| pattern.matches(path))
    }

    /// Whether everything for which `other` holds is something for which this holds. False if that is not certain.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        fn all<T>(wide: &[T], narrow: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
            wide.is_empty()
                || !narrow.is_empty()
                    && narrow.iter().all(|narrow| wide.iter().any(|wide| covers(wide, narrow)))
        }
        all(&self.methods, &other.methods, |a, b| a.eq_ignore_ascii_case(b))
            && all(&self.paths, &other.paths, PathPattern::covers)
            && self.headers.iter().all(|(name, _)| {
                // All names must be there, and of each one value is enough.
                let of_name = |headers: &[(String, Glob)]| -> Vec<Glob> {
                    headers.iter().filter(|(of, _)| of == name).map(|(_, glob)| glob.clone()).collect()
                };
                all(&of_name(&self.headers), &of_name(&other.headers), |a, b| a == b)
            })
            && all(&self.hosts, &other.hosts, |a, b| a == b)
            && all(&self.classes, &other.classes, |a, b| a == b)
            && all(&self.plans, &other.plans, |a, b| a == b)
            && (self.networks.is_none() || self.networks == other.networks)
            && self.not.iter().all(|not| other.not.iter().any(|other| other.covers(not)))
    }

    /// Whether nothing that this holds for is something that `other` holds for. False if that is not certain.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        fn apart<T>(mine: &[T], theirs: &[T], meet: impl Fn(&T, &T) -> bool) -> bool {
            !mine.is_empty()
                && !theirs.is_empty()
                && !mine.iter().any(|mine| theirs.iter().any(|theirs| meet(mine, theirs)))
        }
        let rules_out = |not: &Self, all: &Self| not.not.is_empty() && not.covers(all);
        apart(&self.methods, &other.methods, |a, b| a.eq_ignore_ascii_case(b))
            || apart(&self.paths, &other.paths, PathPattern::meets)
            || apart(&self.plans, &other.plans, |a, b| a == b)
            || apart(&self.hosts, &other.hosts, |a, b| a == b || a.is_pattern() || b.is_pattern())
            || self.not.iter().any(|not| rules_out(not, other))
            || other.not.iter().any(|not| rules_out(not, self))
    }

    /// Whether the host of a request matters.
    pub(crate) fn reads_host(&self) -> bool {
        !self.hosts.is_empty() || self.not.iter().any(Self::reads_host)
    }

    /// The first path that another spelling in upper or lower case evades.
    pub(crate) fn evaded_by_case(&self) -> Option<&PathPattern> {
        // Where another pattern of the same condition matches every spelling, the request still matches.
        let is_evaded = |path: &&PathPattern| {
            path.depends_on_case() && {
                let any_case = (*path).clone().ignoring_case();
                !self.paths.iter().any(|other| other.covers(&any_case))
            }
        };
        self.paths.iter().find(is_evaded)
    }

    /// Names of headers that are looked at.
    pub(crate) fn headers_read<'c>(&'c self, names: &mut Vec<&'c str>) {
        names.extend(self.headers.iter().map(|(name, _)| name.as_str()));
        self.not.iter().for_each(|not| not.headers_read(names));
    }

    /// Whether nothing can ever be like this.
    pub(crate) fn is_impossible(&self) -> bool {
        let positive = Self { not: Vec::new(), ..self.clone() };
        self.not.iter().any(|not| not.not.is_empty() && not.covers(&positive))
    }
}

/// Without the port, even one that is empty or none at all, without a user, and without the dot that a name may end with: whatever
/// servers take for the same host is the same here.
pub(crate) fn host_name(host: &str) -> &[u8] {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let name = match host.rfind(']') {
        Some(end) => host.get(..=end).unwrap_or(host),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.trim_end_matches('.').as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a reader: an empty port, or none that could be, made another host.
    #[test]
    fn a_host_is_its_name() {
        for host in [
            "a.com",
            "a.com:80",
            "a.com:",
            "a.com:99999",
            "a.com:x",
            "a.com.",
            "a.com.:80",
            "u@a.com",
            "u:p@a.com:1",
        ] {
            assert_eq!(host_name(host), b"a.com", "{host}");
        }
        for host in ["[::1]", "[::1]:80", "[::1]:"] {
            assert_eq!(host_name(host), b"[::1]", "{host}");
        }
        assert_eq!(host_name(""), b"");
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (glob, text, is) in [
            ("sk_test_*", "sk_test_1", true),
            ("sk_test_*", "sk_live_1", false),
            ("*_test", "a_test", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "ab", false),
            ("a*a", "a", false),
            ("a**c", "abc", true),
            ("*b*", "abc", true),
            ("*b*", "ac", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("a**b*", "a", false),
            ("a**b*", "ab", true),
            ("**", "", true),
            ("a**", "a", true),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
        ] {
            assert_eq!(Glob::new(glob).matches(text.as_bytes()), is, "{glob} {text}");
        }
        assert!(Glob::in_any_case("API.example.com").matches(b"api.EXAMPLE.com"));
        assert!(Glob::new("x").matches(b" x "));
    }
}
