//! Conditions: `POST /v1/charges`, `{ header x-api-key: sk_test_* }`, and what must not be so.

use super::super::address::{Networks, parse_network};
use super::super::condition::{Condition, Glob};
use super::super::document::{Node, Value};
use super::super::fields;
use super::super::mistakes::{Place, nearest};
use super::super::path::PathPattern;
use super::classes::{ReadClass, contradicts};
use super::reader::Reader;

/// Names that conditions may refer to.
#[derive(Clone, Copy, Default)]
pub(super) struct Names<'p> {
    pub(super) plans: &'p [&'p str],
    /// None where classes are being defined.
    pub(super) classes: Option<&'p [&'p str]>,
    /// The classes themselves, without that of all others.
    pub(super) kinds: &'p [ReadClass],
}

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];

impl Reader<'_> {
    pub(super) fn conditions(&mut self, node: &Node, names: Names<'_>) -> Vec<Condition> {
        let conditions = self.some(node).iter().filter_map(|node| self.condition(node, names));
        conditions.map(Condition::ready).collect()
    }

    fn condition(&mut self, node: &Node, names: Names<'_>) -> Option<Condition> {
        match &node.value {
            Value::Text(text) => self.route(node, text),
            Value::Map(_) => self.condition_map(node, names),
            _ => {
                self.error_with(
                    node.place,
                    "this is no condition",
                    "write `POST /v1/charges`, or { path: /v1/*, header x-api-key: sk_test_* }",
                );
                None
            }
        }
    }

    /// `POST /v1/charges`, `GET *`, `/v1/*`
    fn route(&mut self, node: &Node, text: &str) -> Option<Condition> {
        let mut words = text.split_whitespace();
        let (method, path) = match (words.next(), words.next(), words.next()) {
            (Some(path), None, _) if path.starts_with(['/', '*']) => (None, path),
            (Some(method), Some(path), None) => (Some(method), path),
            (Some(word), None, _) => {
                self.error_with(node.place, format!("{text:?} is no condition"), meant(word));
                return None;
            }
            _ => {
                self.error_with(node.place, format!("{text:?} is no condition"), "write `POST /v1/charges`");
                return None;
            }
        };
        let mut condition = Condition::default();
        if let Some(method) = method.filter(|method| *method != "*") {
            condition.add_method(&self.method(node, method)?);
        }
        if path != "*" {
            condition.paths.push(self.path(node, path, self.ignores_path_case)?);
        }
        Some(condition)
    }

    fn method(&mut self, node: &Node, method: &str) -> Option<String> {
        let upper = method.to_ascii_uppercase();
        if upper.is_empty()
            || !upper.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            self.error_with(
                node.place,
                format!("{method:?} is no method"),
                "methods are words such as GET and POST",
            );
            return None;
        }
        if !METHODS.contains(&upper.as_str())
            && let Some(meant) = nearest(&upper, METHODS)
        {
            self.warn(node.place, format!("{method:?} is a rare method"), format!("did you mean `{meant}`?"));
        }
        Some(upper)
    }

    fn path(&mut self, node: &Node, path: &str, ignores_case: bool) -> Option<PathPattern> {
        let pattern = PathPattern::parse(path).map_err(|problem| self.error(node.place, problem)).ok()?;
        Some(if ignores_case { pattern.ignoring_case() } else { pattern })
    }

    /// Whether `path_case` says that case is ignored. None if it says nothing.
    pub(super) fn path_case(&mut self, node: Option<&Node>) -> Option<bool> {
        let word = self.word(node?, "path_case", fields::PATH_CASES)?;
        Some(word == "insensitive")
    }

    fn condition_map(&mut self, node: &Node, names: Names<'_>) -> Option<Condition> {
        let mut condition = Condition::default();
        let entries = self.entries(node, "a condition")?;
        if entries.is_empty() {
            let help = "write `*` for every request, or leave it out";
            self.error_with(node.place, "this condition says nothing", help);
        }
        let path_case = entries.iter().find(|(key, _)| key.name == "path_case").map(|(_, node)| *node);
        let has_path = entries.iter().any(|(key, _)| key.name == "path");
        if let (Some(node), false) = (path_case, has_path) {
            self.error_with(node.place, "`path_case` needs a `path`", "add `path: /login`, or remove it");
        }
        let ignores_case = self.path_case(path_case).unwrap_or(self.ignores_path_case);
        for (key, value) in entries {
            if matches!(value.value, Value::Null) {
                self.error_with(
                    key.place,
                    format!("`{}` is blank", key.name),
                    "say something, or leave it out",
                );
                continue;
            }
            let words: Vec<&str> = key.name.split_whitespace().collect();
            match words.as_slice() {
                ["method"] => {
                    for node in self.some(value) {
                        let method = self.text(node, "a method").map(str::to_owned);
                        if let Some(method) = method.and_then(|method| self.method(node, &method)) {
                            condition.add_method(&method);
                        }
                    }
                }
                ["path"] => {
                    for node in self.some(value) {
                        let path = self.text(node, "a path").map(str::to_owned);
                        condition.paths.extend(path.and_then(|path| self.path(node, &path, ignores_case)));
                    }
                }
                ["path_case"] => {}
                ["header"] => {
                    for (name, value) in self.entries(value, "`header`").unwrap_or_default() {
                        self.header(&mut condition, name.place, &name.name, value);
                    }
                }
                ["header", name] => self.header(&mut condition, key.place, name, value),
                ["host"] => {
                    for node in self.some(value) {
                        condition.hosts.extend(self.host(node).map(Glob::in_any_case));
                    }
                }
                ["class"] => match names.classes {
                    Some(classes) => {
                        for node in self.some(value) {
                            condition.classes.extend(self.named(node, "class", classes));
                        }
                    }
                    None => self.error(key.place, "classes cannot be told by classes"),
                },
                ["plan"] => {
                    for node in self.some(value) {
                        condition.plans.extend(self.named(node, "plan", names.plans));
                    }
                }
                ["network"] => {
                    let networks: Vec<_> = self
                        .some(value)
                        .iter()
                        .filter_map(|node| self.parsed(node, "a network", parse_network))
                        .collect();
                    condition.networks = Some(networks.into_iter().collect::<Networks>());
                }
                ["not"] => condition.not.extend(self.conditions(value, names)),
                _ => self.unknown(key.place, "condition", &key.name, fields::names(fields::CONDITION)),
            }
        }
        if condition == Condition::default() {
            return None;
        }
        if condition.is_impossible() {
            self.warn(
                node.place,
                "no request can ever be like this",
                "`not` takes away all that the rest asks for",
            );
        }
        if contradicts(&condition, names.kinds) {
            self.warn(
                node.place,
                "no request can ever be like this",
                "requests of this class are others than what the rest asks for",
            );
        }
        Some(condition)
    }

    fn header(&mut self, condition: &mut Condition, place: Place, name: &str, value: &Node) {
        self.check_header(place, name);
        for node in self.some(value) {
            let glob = self.header_value(node).map(Glob::new);
            condition.headers.extend(glob.map(|glob| (name.to_ascii_lowercase(), glob)));
        }
    }
}

/// What may be meant by a word that is no condition: `POST`, `POST/v1` or `v1/charges`.
fn meant(word: &str) -> String {
    let is_method = |word: &str| METHODS.iter().any(|method| method.eq_ignore_ascii_case(word));
    match word.find(['/', '*']).and_then(|at| word.split_at_checked(at)) {
        Some((method, path)) if is_method(method) => format!("did you mean `{method} {path}`?"),
        Some(_) => format!("did you mean `/{word}`?"),
        None => format!("write `{word} *` for every path"),
    }
}
