//! From a file as it was written to a policy: everything that is wrong with it is found in one go.

mod answers;
mod classes;
mod conditions;
mod cost;
mod draft;
mod gateway;
mod identify;
mod limiters;
mod lists;
mod names;
mod per;
mod quotas;
mod reader;
mod store;
mod tokens;
mod warnings;
mod workers;

use std::sync::Arc;

use hashbrown::HashMap;

use self::conditions::Names;
pub use self::draft::{DraftError, LimiterDraft, PolicyDraft};
use self::limiters::{Context, Drafted};
use self::quotas::Quota;
use self::reader::Reader;
use self::warnings::Known;
use super::document::{self, Node};
use super::mistakes::{Mistakes, Place, Severity};
use super::{Limiter, OTHER, Part, Plan, Policy, fields};

/// What is known only where a policy will be at work. What it says is wrong is told like any other mistake.
pub trait Surroundings {
    /// Whether this is the address of a store, and if not, why.
    fn store(&self, _address: &str) -> Result<(), String> {
        Ok(())
    }

    /// Whether a file that the policy names can be read, and if not, why.
    fn file(&self, _path: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Where nothing more is known.
pub(super) struct Anywhere;

impl Surroundings for Anywhere {}

/// A policy, and what is unwise about it; or everything that is wrong.
pub(super) fn policy(text: &str, surroundings: &dyn Surroundings) -> Result<(Policy, Mistakes), Mistakes> {
    let mut reader = Reader::new(text, surroundings);
    let policy = match document::parse(text) {
        Ok(Some(root)) => reader.policy(&root),
        Ok(None) => {
            reader.error_with(
                Place::default(),
                "this policy is empty",
                "the least is: limiters: { request-rate: { rate: 50/s } }",
            );
            None
        }
        Err(unreadable) => {
            reader.mistakes.add(Severity::Error, unreadable.place, unreadable.message, unreadable.help);
            None
        }
    };
    let mut mistakes = reader.mistakes;
    mistakes.sort();
    match policy {
        Some(policy) if !mistakes.has_errors() => Ok((policy.with_usual(), mistakes)),
        _ => Err(mistakes),
    }
}

/// What is right where callers are not known by their addresses.
const KNOWN_BY_IP: &str = "add `ip` to `caller` in `identify`";

/// What is right where a network stands for a caller.
const OF_NETWORKS: &str = "limits by network are `match: { network: 10.0.0.0/8 }`";

/// What can be used of a text that is of no use as a policy.
pub(super) fn salvage(text: &str) -> Option<Policy> {
    let mut reader = Reader::new(text, &Anywhere);
    let read = reader.policy(&document::parse(text).ok()??)?;
    let (nothing, _) = policy("limiters: {}", &Anywhere).ok()?;
    Some(Policy {
        store: read.store,
        address: read.address,
        gateway: read.gateway,
        admin_listen: read.admin_listen,
        ..nothing
    })
}

/// Limiters, classes, or patterns of a table, of one policy.
const MOST: usize = 1000;

impl Reader<'_> {
    fn policy(&mut self, root: &Node) -> Option<Policy> {
        let before = self.mistakes.told();
        let top = self.fields(root, "a policy", fields::POLICY)?;
        let is_clean = self.mistakes.told() == before;
        let store = top.get("store").map(|node| self.store(node)).unwrap_or_default();
        let identify_fields =
            top.get("identify").and_then(|node| self.fields(node, "`identify`", fields::IDENTIFY));
        let identify = self.identify(identify_fields.as_ref());
        let address = self.address(&top);
        self.ignores_path_case = self.path_case(top.get("path_case")).unwrap_or_default();

        let plan_nodes = top.get("plans").and_then(|node| self.entries(node, "`plans`")).unwrap_or_default();
        let mut plans: Vec<(&str, Quota)> = Vec::new();
        for (key, node) in &plan_nodes {
            self.check_length(key.place, &key.name);
            let quota = self.quota(node, &format!("the plan {:?}", key.name), fields::PLAN);
            plans.push((&key.name, quota.unwrap_or_default()));
        }
        let plan_names: Vec<&str> = plans.iter().map(|(name, _)| *name).collect();

        let read_classes = self.classes(top.get("classes"), &plan_names);
        let class_names: Vec<&str> =
            read_classes.iter().map(|read| &*read.class.name).chain([OTHER]).collect();
        let names = Names { plans: &plan_names, classes: Some(&class_names), kinds: &read_classes };
        let context = Context { plans: &plans, names, classes: &class_names };

        let mut drafts: Vec<Drafted> = Vec::new();
        match top.get("limiters") {
            Some(node) => {
                let entries = self.entries(node, "`limiters`").unwrap_or_default();
                if let Some((key, _)) = entries.get(MOST) {
                    self.error(key.place, format!("there are more than {MOST} limiters"));
                }
                for (key, node) in entries.into_iter().take(MOST) {
                    self.check_limiter_name(key.place, &key.name);
                    drafts.extend(self.limiter(&key.name, key.place, node, &context));
                }
            }
            // What is missing has perhaps been misspelled or left blank, and that was told.
            None if is_clean => self.error_with(
                Place { end: root.place.start, ..root.place },
                "`limiters` is missing",
                "the least is: limiters: { request-rate: { rate: 50/s } }",
            ),
            None => {}
        }
        self.check_workers(&drafts);
        self.check_clashes(&drafts);
        let overrides =
            top.get("overrides").map(|node| self.overrides(node, &mut drafts, &plan_names, &identify));
        let table = identify_fields.as_ref().and_then(|fields| fields.get("table"));
        self.check_table(identify_fields.as_ref(), &identify);
        let table = table.map(|node| self.table(node, &plan_names, &identify)).unwrap_or_default();
        let default_plan = self.default_plan(identify_fields.as_ref(), &plan_names);
        let jwt = self.jwt(identify_fields.as_ref(), &identify);
        let allow =
            top.get("allow").map(|node| self.listed(node, "`allow`", &identify, None)).unwrap_or_default();
        let block = top
            .get("block")
            .map(|node| self.listed(node, "`block`", &identify, Some(&allow)))
            .unwrap_or_default();
        let answers = top.get("answers").map(|node| self.answers(node)).unwrap_or_default();
        let gateway = top.get("gateway").map(|node| self.gateway(node)).unwrap_or_default();
        let admin_listen = top.get("admin").and_then(|node| {
            let fields = self.fields(node, "`admin`", fields::ADMIN)?;
            self.listen(fields.get("listen")?)
        });
        let timeout = gateway.timeouts.answer;
        self.check_watched(&drafts, &gateway);
        let places: Vec<(&str, Place)> =
            plan_nodes.iter().map(|(key, _)| (key.name.as_str(), key.place)).collect();
        let own = overrides.iter().flat_map(|overrides| overrides.values()).filter_map(|own| own.plan);
        let held: Vec<usize> = table.plans().chain(own).collect();
        let known = Known {
            plans: &places,
            default_plan,
            held: &held,
            store: &store,
            identify: &identify,
            address: &address,
            allow: &allow,
            block: &block,
            timeout,
        };
        self.unwise(&top, &known, &read_classes, &drafts);
        let limiters = with_kinds(drafts.into_iter().map(|drafted| drafted.limiter).collect());
        let plan_list: Vec<Plan> = plan_names.iter().map(|name| Plan { name: Arc::from(*name) }).collect();
        Some(Policy {
            store,
            identify,
            jwt,
            address,
            plan_names: plan_list.iter().enumerate().map(|(at, plan)| (Arc::clone(&plan.name), at)).collect(),
            plans: plan_list,
            default_plan,
            table,
            ignores_path_case: self.ignores_path_case,
            classes: read_classes.into_iter().map(|read| read.class).collect(),
            match_kinds: match_kinds(&limiters),
            limiters,
            usual: Vec::new(),
            overrides: overrides.unwrap_or_default(),
            allow,
            block,
            answers,
            mode: self.mode(&top),
            gateway,
            admin_listen,
            stated: std::mem::take(&mut self.stated),
        })
    }

    /// Names of limiters stand in headers, metrics and commands.
    fn check_limiter_name(&mut self, place: Place, name: &str) {
        if name == "plan" {
            let help = "call it something else: `plan` in an override is the plan of a caller";
            self.error_with(place, "`plan` is no name of a limiter", help);
        } else {
            self.check_name(place, "a limiter", name);
        }
    }

    /// Names that stand in metrics and logs.
    fn check_name(&mut self, place: Place, of: &str, name: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > 64 || !name.chars().all(is_plain) {
            self.error_with(
                place,
                format!("{name:?} is no name of {of}"),
                "it has up to 64 letters, digits, `-`, `_` and `.`",
            );
        }
    }

    /// Names of plans and classes stand in metrics and keys.
    fn check_length(&mut self, place: Place, name: &str) {
        if name.len() > 64 || name.chars().any(char::is_control) {
            let help = "it has up to 64 bytes, and none that cannot be seen";
            self.error_with(place, "this is too long or too strange for a name", help);
        }
    }

    /// The second of several rates is known by the name of its limiter and a number.
    fn check_clashes(&mut self, drafts: &[Drafted]) {
        let names: HashMap<&str, Place> =
            drafts.iter().map(|draft| (&*draft.limiter.name, draft.place)).collect();
        for draft in drafts {
            let limiter = &draft.limiter;
            let sets = limiter.choices.iter().chain(&limiter.candidate);
            for number in 2..=sets.map(|limits| limits.len()).max().unwrap_or(0) {
                let taken = format!("{}-{number}", limiter.name);
                if let Some(place) = names.get(taken.as_str()) {
                    let message =
                        format!("{taken:?} is what one of the rates of {:?} is called", limiter.name);
                    self.error_with(*place, message, "call this limiter something else");
                }
            }
        }
    }

    fn check_workers(&mut self, drafts: &[Drafted]) {
        let workers = drafts.iter().filter(|draft| matches!(draft.limiter.kind, super::Kind::Worker(_)));
        for draft in workers.skip(1) {
            self.error(draft.place, "there is another `workers`: a process has one utilization");
        }
    }
}

/// Limiters that tell buckets apart in the same way get the same number. Where paths are counted by their patterns, these
/// must be the same, too. Those that are for the same requests get the same number as well.
fn with_kinds(mut limiters: Vec<Limiter>) -> Vec<Limiter> {
    let mut match_kinds = 0..;
    for index in 0..limiters.len() {
        let (before, rest) = limiters.split_at_mut(index);
        let Some(limiter) = rest.first_mut() else { continue };
        let alike = |other: &Limiter| {
            other.per == limiter.per
                && (!limiter.per.contains(&Part::Path) || other.matches == limiter.matches)
        };
        limiter.key_kind = before.iter().position(alike).unwrap_or(index);
        let same = |other: &&Limiter| other.matches == limiter.matches;
        limiter.match_kind = match before.iter().find(same) {
            _ if limiter.matches.is_empty() => None,
            Some(other) => other.match_kind,
            None => match_kinds.next(),
        };
    }
    limiters
}

/// The first limiter of each kind.
fn match_kinds(limiters: &[Limiter]) -> Vec<usize> {
    let mut kinds = Vec::new();
    for (index, limiter) in limiters.iter().enumerate() {
        if limiter.match_kind == Some(kinds.len()) {
            kinds.push(index);
        }
    }
    kinds
}
