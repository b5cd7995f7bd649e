//! From a file as it was written to a policy: everything that is wrong with it is found in one go.

mod conditions;
mod cost;
mod draft;
mod gateway;
mod limiters;
mod per;
mod quotas;
mod reader;
mod warnings;
mod workers;

use std::sync::Arc;

use hashbrown::HashMap;
use ipnet::{Ipv4Net, Ipv6Net};

use self::conditions::Names;
pub use self::draft::{DraftError, LimiterDraft, PolicyDraft};
use self::limiters::{Context, Drafted};
use self::quotas::Quota;
use self::reader::{Fields, Reader, spelled_out};
use self::warnings::Known;
use super::address::{AddressHeader, ClientAddress, Networks, V6_PREFIX, parse_network};
use super::condition::{Condition, Glob};
use super::document::{self, Node, Value};
use super::identify::{Identify, Named, Source};
use super::mistakes::{Mistakes, Place};
use super::table::PlanTable;
use super::{Class, Jwt, Limiter, List, OTHER, Override, Part, Plan, Policy, StoreChoice, fields, quantity};
use crate::answer::{AnswerStyle, HeaderStyle};

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
    let mut reader = Reader { mistakes: Mistakes::new(text), surroundings };
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
            reader.error(unreadable.place, unreadable.message);
            None
        }
    };
    let mut mistakes = reader.mistakes;
    mistakes.sort();
    match policy {
        Some(policy) if !mistakes.has_errors() => Ok((policy, mistakes)),
        _ => Err(mistakes),
    }
}

/// What is right where callers are not known by their addresses.
const KNOWN_BY_IP: &str = "add `ip` to `caller` in `identify`";

/// What can be used of a text that is of no use as a policy.
pub(super) fn salvage(text: &str) -> Option<Policy> {
    let mut reader = Reader { mistakes: Mistakes::new(text), surroundings: &Anywhere };
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

/// A class as it was read, with the place of its name.
struct ReadClass {
    class: Class,
    place: Option<Place>,
}

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
        let names = Names { plans: &plan_names, classes: Some(&class_names) };
        let context = Context { plans: &plans, names, classes: &class_names };

        let mut drafts: Vec<Drafted> = Vec::new();
        match top.get("limiters") {
            Some(node) => {
                let entries = self.entries(node, "`limiters`").unwrap_or_default();
                if let Some((key, _)) = entries.get(MOST) {
                    self.error(key.place, format!("there are more than {MOST} limiters"));
                }
                for (key, node) in entries.into_iter().take(MOST) {
                    self.check_name(key.place, &key.name);
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
        let allow = top.get("allow").map(|node| self.listed(node, "`allow`", &identify)).unwrap_or_default();
        let block = top.get("block").map(|node| self.listed(node, "`block`", &identify)).unwrap_or_default();
        let answers = top.get("answers").map(|node| self.answers(node)).unwrap_or_default();
        let gateway = top.get("gateway").map(|node| self.gateway(node)).unwrap_or_default();
        let admin_listen = top.get("admin").and_then(|node| {
            let fields = self.fields(node, "`admin`", fields::ADMIN)?;
            self.listen(fields.get("listen")?)
        });
        let timeout = gateway.timeouts.answer;
        self.check_watched(&drafts, &gateway);
        let known = Known {
            store: &store,
            identify: &identify,
            address: &address,
            allow: &allow,
            block: &block,
            timeout,
        };
        self.unwise(&top, &known, &read_classes, &drafts);
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
            classes: read_classes.into_iter().map(|read| read.class).collect(),
            limiters: with_kinds(drafts.into_iter().map(|drafted| drafted.limiter).collect()),
            overrides: overrides.unwrap_or_default(),
            allow,
            block,
            answers,
            mode: self.mode(&top),
            gateway,
            admin_listen,
        })
    }

    /// Names of limiters stand in headers, metrics and commands.
    fn check_name(&mut self, place: Place, name: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name == "plan" {
            let help = "call it something else: `plan` in an override is the plan of a caller";
            self.error_with(place, "`plan` is no name of a limiter", help);
        } else if name.len() > 64 || !name.chars().all(is_plain) {
            self.error_with(
                place,
                format!("{name:?} is no name of a limiter"),
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

    /// A table that is not asked, and one that is asked and not there.
    fn check_table(&mut self, fields: Option<&Fields<'_>>, identify: &Identify) {
        let Some(fields) = fields else { return };
        let asked = identify.plan.contains(&Source::Table);
        match (fields.place_of("table"), fields.place_of("plan")) {
            (Some(place), _) if !asked => {
                self.warn(place, "no plan is looked for in this table", "add `plan: [table]` to `identify`");
            }
            (None, Some(place)) if asked => {
                self.error_with(
                    place,
                    "there is no table",
                    "add `table: { name-of-a-caller: name-of-a-plan }`",
                );
            }
            _ => {}
        }
    }

    fn check_workers(&mut self, drafts: &[Drafted]) {
        let workers = drafts.iter().filter(|draft| matches!(draft.limiter.kind, super::Kind::Worker(_)));
        for draft in workers.skip(1) {
            self.error(draft.place, "there is another `workers`: a process has one utilization");
        }
    }

    fn store(&mut self, node: &Node) -> StoreChoice {
        if !matches!(node.value, Value::Map(_)) {
            return StoreChoice { url: self.store_address(node, "`store`"), ..StoreChoice::default() };
        }
        let Some(fields) = self.fields(node, "`store`", fields::STORE) else { return StoreChoice::default() };
        let url = fields.get("url").and_then(|node| self.store_address(node, "`url`"));
        let mut text = |name: &str| self.text(fields.get(name)?, &format!("`{name}`")).map(str::to_owned);
        let (secret, prefix) = (text("secret"), text("prefix"));
        if let Some(node) = fields.get("secret") {
            self.mistakes.hide(node.place);
        }
        let deadline =
            fields.get("deadline").and_then(|node| self.parsed(node, "`deadline`", quantity::deadline));
        let expected_nodes = fields
            .get("expected_nodes")
            .and_then(|node| self.parsed(node, "`expected_nodes`", quantity::some));
        let max_bytes =
            fields.get("max_bytes").and_then(|node| self.parsed(node, "`max_bytes`", quantity::bytes));
        StoreChoice { url, secret, prefix, deadline, expected_nodes, max_bytes }
    }

    /// The address of a shared store. What in it may be a password is not shown.
    fn store_address(&mut self, node: &Node, what: &str) -> Option<String> {
        let text = self.text(node, what)?.trim();
        let written = self.mistakes.text_at(node.place);
        let login = written.find("://").zip(written.rfind('@')).map(|(from, to)| (from + 3, to));
        let pass = written.find("pass=").map(|from| {
            let rest = written.get(from + 5..).unwrap_or_default();
            (from + 5, from + 5 + rest.find(['&', '"', '\'']).unwrap_or(rest.len()))
        });
        for (from, to) in login.into_iter().chain(pass) {
            self.mistakes.hide(Place { start: node.place.start + from, end: node.place.start + to });
        }
        if text == "memory" {
            return None;
        }
        if let Err(problem) = self.surroundings.store(text) {
            self.error(node.place, problem);
        }
        Some(text.to_owned())
    }

    fn identify(&mut self, fields: Option<&Fields<'_>>) -> Identify {
        let tagged = |source: Source| {
            let tag = source.tag();
            (source, tag)
        };
        let mut identify =
            Identify { caller: vec![tagged(Source::Ip)], plan: Vec::new(), v6_prefix: V6_PREFIX };
        let Some(fields) = fields else { return identify };
        if let Some(node) = fields.get("caller") {
            let sources = self.sources(node, &["ip", "tls"]);
            identify.caller = sources.into_iter().map(tagged).collect();
        }
        if let Some(node) = fields.get("plan") {
            identify.plan = self.sources(node, &["tls", "table"]);
        }
        if let Some(node) = fields.get("ipv6_prefix")
            && let Some(prefix) = self.parsed(node, "`ipv6_prefix`", quantity::whole)
        {
            match u8::try_from(prefix) {
                Ok(prefix @ 32..=128) => identify.v6_prefix = prefix,
                _ => self
                    .error(node.place, format!("{prefix} bits do not tell callers apart: from 32 to 128 do")),
            }
        }
        identify
    }

    fn sources(&mut self, node: &Node, words: &[&str]) -> Vec<Source> {
        let mut sources = Vec::new();
        let nodes = self.some(node);
        for node in self.at_most(nodes, 16, "sources") {
            let source = match &node.value {
                Value::Map(_) => {
                    let Some(fields) = self.fields(node, "a source", fields::SOURCES) else { continue };
                    const KINDS: [&str; 4] = ["header", "cookie", "query", "jwt"];
                    match fields.present(&KINDS).as_slice() {
                        [kind] => {
                            let Some(name) = fields.get(kind).and_then(|node| self.text(node, kind)) else {
                                continue;
                            };
                            match *kind {
                                "header" => Source::Header(name.to_ascii_lowercase()),
                                "cookie" => Source::Cookie(name.to_owned()),
                                "query" => Source::Query(name.to_owned()),
                                _ => Source::Jwt(name.to_owned()),
                            }
                        }
                        [] => continue,
                        several => {
                            let message = format!("these are several sources: {}", spelled_out(several));
                            self.error_with(
                                node.place,
                                message,
                                "write them one after the other: [header: a, cookie: b]",
                            );
                            continue;
                        }
                    }
                }
                _ => match self.word(node, "source", words) {
                    Some("ip") => Source::Ip,
                    Some("tls") => Source::TlsClient,
                    Some(_) => Source::Table,
                    None => continue,
                },
            };
            if sources.contains(&source) {
                self.error(node.place, "this source is there twice");
            } else if sources.last() == Some(&Source::Ip) {
                self.behind_ip(node.place);
            }
            sources.push(source);
        }
        sources
    }

    fn address(&mut self, top: &Fields<'_>) -> ClientAddress {
        let mut address = ClientAddress::default();
        if let Some(node) = top.get("trusted_proxies") {
            let list = self.list(node, "`trusted_proxies`");
            address.trusted =
                list.iter().filter_map(|node| self.parsed(node, "a network", parse_network)).collect();
        }
        if let Some(node) = top.get("trusted_hops")
            && let Some(hops) = self.parsed(node, "`trusted_hops`", quantity::whole)
        {
            match u8::try_from(hops) {
                Ok(hops @ 1..=32) => {
                    address.hops = Some(hops);
                    // Where nobody knows the addresses of proxies, they are told by their number alone.
                    let proxies = top.get("trusted_proxies").map(|node| &node.value);
                    if proxies.is_none() {
                        address.trusted = [Ipv4Net::default().into(), Ipv6Net::default().into()]
                            .into_iter()
                            .collect::<Networks>();
                    } else if matches!(proxies, Some(Value::List(list)) if list.is_empty()) {
                        self.error_with(
                            node.place,
                            "there are proxies, and `trusted_proxies` is empty",
                            "leave one of them out",
                        );
                    }
                }
                _ => self
                    .error(node.place, format!("{hops} proxies one behind the other? From 1 to 32 can be")),
            }
        }
        if let Some(name) = top.get("address_header").and_then(|node| self.text(node, "`address_header`")) {
            address.header = match name.to_ascii_lowercase().as_str() {
                "x-forwarded-for" => AddressHeader::XForwardedFor,
                "forwarded" => AddressHeader::Forwarded,
                other => AddressHeader::Named(other.to_owned()),
            };
        }
        address
    }

    fn classes(&mut self, node: Option<&Node>, plans: &[&str]) -> Vec<ReadClass> {
        let Some(node) = node else { return usual_classes() };
        let names = Names { plans, classes: None };
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

    fn default_plan(&mut self, fields: Option<&Fields<'_>>, plans: &[&str]) -> Option<usize> {
        match fields.and_then(|fields| fields.get("default_plan")) {
            Some(node) => self.named(node, "plan", plans),
            None => (!plans.is_empty()).then_some(0),
        }
    }

    fn table(&mut self, node: &Node, plans: &[&str], identify: &Identify) -> PlanTable {
        let mut table = PlanTable::default();
        for (key, node) in self.entries(node, "`table`").unwrap_or_default() {
            let Some(plan) = self.named(node, "plan", plans) else { continue };
            if !key.name.contains('*') {
                self.addressed(key.place, &key.name, identify, KNOWN_BY_IP);
                if !table.insert(Named::of(&key.name, identify.v6_prefix), plan) {
                    self.same_caller(key.place);
                }
                continue;
            }
            // Each request may be held against all of them.
            if table.patterns() == MOST {
                self.error(key.place, format!("there are more than {MOST} patterns"));
                break;
            }
            self.pattern_of_addresses(key.place, &key.name, identify);
            table.insert_pattern(Glob::new(&key.name), plan);
        }
        table
    }

    fn overrides(
        &mut self,
        node: &Node,
        drafts: &mut [Drafted],
        plans: &[&str],
        identify: &Identify,
    ) -> HashMap<Named, Override> {
        let mut overrides = HashMap::new();
        for (caller, node) in self.entries(node, "`overrides`").unwrap_or_default() {
            let mut own = Override::default();
            for (key, node) in
                self.entries(node, &format!("the override of {:?}", caller.name)).unwrap_or_default()
            {
                let at = drafts.iter().position(|draft| *draft.limiter.name == *key.name);
                match (at, key.name.as_str()) {
                    (Some(at), _) => {
                        let Some(draft) = drafts.get_mut(at) else { continue };
                        if let Some(quota) = self.short_quota(node, "an override", draft.kind()) {
                            own.choices.extend(self.own_choice(draft, &quota).map(|choice| (at, choice)));
                        }
                    }
                    (None, "plan") => own.plan = self.named(node, "plan", plans),
                    (None, name) => {
                        let limiters = drafts.iter().map(|draft| &*draft.limiter.name);
                        let known: Vec<&str> = limiters.chain(["plan"]).collect();
                        self.unknown(key.place, "limiter", name, known);
                    }
                }
            }
            self.addressed(caller.place, &caller.name, identify, KNOWN_BY_IP);
            if overrides.insert(Named::of(&caller.name, identify.v6_prefix), own).is_some() {
                self.same_caller(caller.place);
            }
        }
        overrides
    }

    /// Addresses of one network are one caller.
    fn same_caller(&mut self, place: Place) {
        self.error_with(place, "this caller is there twice", "addresses of one IPv6 network are one caller");
    }

    fn listed(&mut self, node: &Node, what: &str, identify: &Identify) -> List {
        let (mut list, mut networks) = (List::default(), Vec::new());
        for node in self.list(node, what) {
            if let Value::Text(text) = &node.value {
                match parse_network(text) {
                    Ok(network) => networks.push((network, node.place)),
                    Err(problem) if text.contains(['.', ':', '/']) => self.error(node.place, problem),
                    Err(_) => {
                        let help = format!("write `caller: {text}`");
                        self.error_with(node.place, format!("{text:?} is no network"), help);
                    }
                }
                continue;
            }
            let Some(fields) = self.fields(node, "an entry", fields::LISTED) else { continue };
            if let Some(node) = fields.get("caller")
                && let Some(caller) = self.text(node, "a caller")
            {
                if caller.contains('/') && parse_network(caller).is_ok() {
                    let help = format!("write `network: {caller}`");
                    self.error_with(node.place, format!("{caller:?} is a network, and no caller"), help);
                }
                self.addressed(node.place, caller, identify, &format!("write `network: {caller}`"));
                list.callers.insert(Named::of(caller, identify.v6_prefix));
            }
            if let Some(node) = fields.get("network") {
                let network = self.parsed(node, "a network", parse_network);
                networks.extend(network.map(|network| (network, node.place)));
            }
        }
        for (network, place) in networks.iter().filter(|_| what == "`allow`") {
            self.allowed(*place, *network);
        }
        list.networks = networks.into_iter().map(|(network, _)| network).collect();
        list
    }

    fn answers(&mut self, node: &Node) -> AnswerStyle {
        let mut style = AnswerStyle::default();
        let Some(fields) = self.fields(node, "`answers`", fields::ANSWERS) else { return style };
        let word =
            fields.get("headers").and_then(|node| self.word(node, "style of headers", fields::HEADER_STYLES));
        style.headers = word.and_then(HeaderStyle::parse).unwrap_or_default();
        if let Some(node) = fields.get("docs_url")
            && let Some(url) = self.text(node, "`docs_url`")
        {
            if url.starts_with("https://") || url.starts_with("http://") {
                style.docs_url = Some(Arc::from(url));
            } else {
                self.error_with(
                    node.place,
                    format!("{url:?} is no address of a page"),
                    "it begins with https://",
                );
            }
        }
        if let Some(share) =
            fields.get("retry_jitter").and_then(|node| self.parsed(node, "`retry_jitter`", quantity::percent))
        {
            style.retry_jitter_percent = u8::try_from(share.div_ceil(10_000)).unwrap_or(100);
        }
        style
    }

    fn jwt(&mut self, fields: Option<&Fields<'_>>, identify: &Identify) -> Option<Jwt> {
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
        let mut text = |name: &str| {
            self.text(fields.get(name)?, &format!("`{name}`")).map(|text| text.trim().to_owned())
        };
        let mut jwt = Jwt {
            key_file: text("key_file"),
            jwks_file: text("jwks_file"),
            secret_env: text("secret_env"),
            algorithms: Vec::new(),
            header: text("header").map(|name| name.to_ascii_lowercase()),
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

/// Limiters that tell buckets apart in the same way get the same number. Where paths are counted by their patterns, these
/// must be the same, too. Those that are for the same requests get the same number as well.
fn with_kinds(mut limiters: Vec<Limiter>) -> Vec<Limiter> {
    for index in 0..limiters.len() {
        let (before, rest) = limiters.split_at_mut(index);
        let Some(limiter) = rest.first_mut() else { continue };
        let alike = |other: &Limiter| {
            other.per == limiter.per
                && (!limiter.per.contains(&Part::Path) || other.matches == limiter.matches)
        };
        limiter.key_kind = before.iter().position(alike).unwrap_or(index);
        let same = |other: &Limiter| other.matches == limiter.matches;
        limiter.match_kind = before.iter().position(same).unwrap_or(index);
    }
    limiters
}

/// Classes of those who do not name their own: nothing is critical until somebody says so.
fn usual_classes() -> Vec<ReadClass> {
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
