//! Kinds of requests.

use std::sync::Arc;

use super::super::condition::{Condition, Glob};
use super::super::document::{Node, Value};
use super::super::mistakes::Place;
use super::super::{Class, OTHER};
use super::MOST;
use super::conditions::Names;
use super::reader::Reader;

/// A class as it was read, with the place of its name.
pub(super) struct ReadClass {
    pub(super) class: Class,
    pub(super) place: Option<Place>,
}

/// Whether a condition asks for classes whose requests are always others than what else it asks for.
pub(super) fn contradicts(condition: &Condition, classes: &[ReadClass]) -> bool {
    if condition.classes.is_empty() {
        return false;
    }
    let rest = Condition { classes: Vec::new(), ..condition.clone() };
    let is_other = |class: &usize| {
        let kinds = classes.get(*class).map_or(&[][..], |read| &read.class.conditions);
        !kinds.is_empty() && kinds.iter().all(|kind| kind.excludes(&rest))
    };
    condition.classes.iter().all(is_other)
}

impl Reader<'_> {
    pub(super) fn classes(&mut self, node: Option<&Node>, plans: &[&str]) -> Vec<ReadClass> {
        let Some(node) = node else { return usual_classes() };
        let names = Names { plans, ..Names::default() };
        let mut classes = Vec::new();
        let entries = self.entries(node, "`classes`").unwrap_or_default();
        if let Some((key, _)) = entries.get(MOST) {
            self.error(key.place, format!("there are more than {MOST} classes"));
        }
        for (key, node) in entries.into_iter().take(MOST) {
            self.check_length(key.place, &key.name);
            if key.name == OTHER {
                let help = "leave it out: it is what matches no class";
                self.error_with(key.place, "`other` is not for you to define", help);
                continue;
            }
            let conditions = match &node.value {
                // One that is not used yet.
                Value::List(list) if list.is_empty() => Vec::new(),
                Value::Null => {
                    self.error_with(
                        key.place,
                        format!("`{}` is blank", key.name),
                        "write [] if nothing is of this class yet",
                    );
                    Vec::new()
                }
                _ => self.conditions(node, names),
            };
            classes.push(ReadClass {
                class: Class { name: Arc::from(key.name.as_str()), conditions },
                place: Some(key.place),
            });
        }
        classes
    }
}

/// Classes of those who do not name their own: nothing is critical until somebody says so.
pub(super) fn usual_classes() -> Vec<ReadClass> {
    let of_methods = |methods: &[&str]| Condition {
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        ..Condition::default()
    };
    let of_header = |name: &str, glob: &str| Condition {
        headers: vec![(name.to_owned(), Glob::new(glob))],
        ..Condition::default()
    };
    let test = vec![of_header("x-api-key", "sk_test_*"), of_header("authorization", "Bearer sk_test_*")];
    let post = vec![of_methods(&["POST", "PUT", "PATCH", "DELETE"])];
    let usual =
        [("critical", Vec::new()), ("test", test), ("post", post), ("get", vec![Condition::default()])];
    let class = |(name, conditions): (&str, Vec<Condition>)| ReadClass {
        class: Class {
            name: Arc::from(name),
            conditions: conditions.into_iter().map(Condition::ready).collect(),
        },
        place: None,
    };
    usual.into_iter().map(class).collect()
}
