//! A policy without a file: the same values, checked by the same rules.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use super::super::address::V6_PREFIX;
use super::super::condition::Condition;
use super::super::document::{Node, Value};
use super::super::identify::{Identify, Source};
use super::super::mistakes::{Mistake, Place};
use super::super::{Cost, Gateway, Kind, Limiter, Mode, Part, Policy, StoreChoice};
use super::classes::usual_classes;
use super::conditions::Names;
use super::limiters::{Drafted, LEASE};
use super::reader::Reader;
use super::warnings::idle;
use super::workers::usual_workers;
use super::{Anywhere, OTHER, match_kinds, with_kinds};
use crate::error::LimitError;
use crate::fleet::FleetMode;
use crate::limit::Limit;
use crate::store::OnFailure;
use crate::time::Nanos;
use crate::worker;

/// A policy that is put together by a program. It has the usual classes; what else a file can say, it has as if the file left
/// it out.
///
/// ```
/// use tollgate_core::Nanos;
/// use tollgate_core::limit::Limit;
/// use tollgate_core::policy::Policy;
///
/// let drafted = Policy::builder()
///     .caller_header("x-api-key")
///     .rate("request-rate", Limit::token_bucket(100, 50, Nanos::from_secs(1)))
///     .concurrency("concurrent-requests", 20)
///     .build()
///     .unwrap();
/// let (read, _) = Policy::read(
///     "identify: { caller: [header: x-api-key] }
/// limiters:
///   request-rate: { rate: 50/s, burst: 100 }
///   concurrent-requests: { concurrency: 20 }",
/// )
/// .unwrap();
/// assert_eq!(drafted, read);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a draft does nothing until `build`"]
pub struct PolicyDraft {
    callers: Vec<Source>,
    critical: Vec<String>,
    limiters: Vec<LimiterDraft>,
    ignores_path_case: bool,
}

/// A limiter of a [`PolicyDraft`].
///
/// ```
/// use tollgate_core::Nanos;
/// use tollgate_core::limit::Limit;
/// use tollgate_core::policy::{LimiterDraft, Mode, Policy};
///
/// let logins = LimiterDraft::rate("logins", Limit::token_bucket(5, 5, Nanos::from_secs(60)))
///     .matching("POST /login")
///     .mode(Mode::Dark);
/// assert!(Policy::builder().limiter(logins).build().is_ok());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limiter limits nothing until a draft has it"]
pub struct LimiterDraft {
    name: String,
    kind: DraftKind,
    matches: Vec<String>,
    is_global: bool,
    mode: Mode,
    on_store_failure: OnFailure,
    cost: Cost,
}

#[derive(Clone, Debug)]
enum DraftKind {
    Rate(Vec<Result<Limit, LimitError>>),
    Concurrency(u64),
    Fleet { places: u64, reserve_percent: u64 },
    Workers(worker::Source),
}

/// All that is wrong with a [`PolicyDraft`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftError {
    messages: Vec<String>,
}

impl DraftError {
    /// What is wrong, one by one.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().map(String::as_str)
    }
}

impl fmt::Display for DraftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
    }
}

impl std::error::Error for DraftError {}

impl LimiterDraft {
    fn new(name: &str, kind: DraftKind) -> Self {
        let is_global = matches!(kind, DraftKind::Fleet { .. } | DraftKind::Workers(_));
        Self {
            name: name.to_owned(),
            kind,
            matches: Vec::new(),
            is_global,
            mode: Mode::Enforce,
            on_store_failure: OnFailure::default(),
            cost: Cost::Fixed(1),
        }
    }

    /// So many requests in so long, for each caller.
    pub fn rate(name: &str, limit: impl Into<Result<Limit, LimitError>>) -> Self {
        Self::new(name, DraftKind::Rate(vec![limit.into()]))
    }

    /// So many requests in progress, for each caller.
    pub fn concurrency(name: &str, count: u64) -> Self {
        Self::new(name, DraftKind::Concurrency(count))
    }

    /// So many places for everybody together, of which a share is kept for what is critical.
    pub fn fleet(name: &str, places: u64, reserve_percent: u64) -> Self {
        Self::new(name, DraftKind::Fleet { places, reserve_percent })
    }

    /// A worker in trouble sheds class by class: tests first, then reads, then writes, and never what is critical.
    pub fn workers(name: &str, source: worker::Source) -> Self {
        Self::new(name, DraftKind::Workers(source))
    }

    /// One more rate, charged together with the others. Only rates can have several.
    pub fn and(mut self, limit: impl Into<Result<Limit, LimitError>>) -> Self {
        let limit = limit.into();
        match &mut self.kind {
            DraftKind::Rate(limits) => limits.push(limit),
            _ => {
                let allowed = "left out: only a rate has several".to_owned();
                let error = LimitError { field: "and", value: "another limit".to_owned(), allowed };
                self.kind = DraftKind::Rate(vec![Err(error)]);
            }
        }
        self
    }

    /// It is for these requests only, written as `match` in a file: `POST /login`. Of several conditions one is enough.
    pub fn matching(mut self, condition: &str) -> Self {
        self.matches.push(condition.to_owned());
        self
    }

    /// One bucket for everybody.
    pub fn global(mut self) -> Self {
        self.is_global = true;
        self
    }

    /// A request costs what its door says ([`Facts::cost`](crate::policy::Facts::cost)), and 1 where it says nothing. Without
    /// this every request costs 1, whatever the door says.
    pub fn given_cost(mut self) -> Self {
        self.cost = Cost::Given;
        self
    }

    /// What becomes of what it decides.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What it does while the store is away.
    pub fn on_store_failure(mut self, on_store_failure: OnFailure) -> Self {
        self.on_store_failure = on_store_failure;
        self
    }
}

impl PolicyDraft {
    /// Callers are told apart by this header. Of several sources the first that is there counts; without any it is the address.
    pub fn caller_header(mut self, name: &str) -> Self {
        self.callers.push(Source::Header(name.to_ascii_lowercase()));
        self
    }

    /// Callers are told apart by their address, where the sources before it have no name. There are no proxies whose word
    /// would be believed.
    pub fn caller_address(mut self) -> Self {
        self.callers.push(Source::Ip);
        self
    }

    /// These requests are critical, written as in a file: `POST /v1/charges`.
    pub fn critical(mut self, condition: &str) -> Self {
        self.critical.push(condition.to_owned());
        self
    }

    /// Paths match regardless of upper and lower case, for servers that treat `/LOGIN` and `/login` as the same path.
    pub fn ignore_path_case(mut self) -> Self {
        self.ignores_path_case = true;
        self
    }

    /// So many requests in so long, for each caller.
    pub fn rate(self, name: &str, limit: impl Into<Result<Limit, LimitError>>) -> Self {
        self.limiter(LimiterDraft::rate(name, limit))
    }

    /// So many requests in progress, for each caller.
    pub fn concurrency(self, name: &str, count: u64) -> Self {
        self.limiter(LimiterDraft::concurrency(name, count))
    }

    /// So many places for everybody together, of which a share is kept for what is critical.
    pub fn fleet(self, name: &str, places: u64, reserve_percent: u64) -> Self {
        self.limiter(LimiterDraft::fleet(name, places, reserve_percent))
    }

    /// A worker in trouble sheds class by class.
    pub fn workers(self, name: &str, source: worker::Source) -> Self {
        self.limiter(LimiterDraft::workers(name, source))
    }

    /// Any limiter.
    pub fn limiter(mut self, limiter: LimiterDraft) -> Self {
        self.limiters.push(limiter);
        self
    }

    /// The policy, or all that is wrong with it.
    pub fn build(self) -> Result<Policy, DraftError> {
        Ok(self.checked()?.0)
    }

    /// As [`build`](Self::build), with what is legal and probably not meant, one by one.
    ///
    /// ```
    /// use tollgate_core::Nanos;
    /// use tollgate_core::limit::Limit;
    /// use tollgate_core::policy::{LimiterDraft, Policy};
    ///
    /// let logins = LimiterDraft::rate("logins", Limit::token_bucket(5, 5, Nanos::from_secs(60))).matching("PSOT /login");
    /// let (_, warnings) = Policy::builder().caller_header("x-api-key").limiter(logins).checked().unwrap();
    /// assert_eq!(warnings, [r#""PSOT" is a rare method: did you mean `POST`?"#]);
    /// ```
    pub fn checked(self) -> Result<(Policy, Vec<String>), DraftError> {
        let mut reader = Reader::new("", &Anywhere);
        reader.ignores_path_case = self.ignores_path_case;
        let policy = reader.draft(self);
        let told = |mistake: &Mistake| match &mistake.help {
            Some(help) => format!("{}: {help}", mistake.message),
            None => mistake.message.clone(),
        };
        let messages: Vec<String> = reader.mistakes.errors().map(told).collect();
        match messages.is_empty() {
            true => Ok((policy.with_usual(), reader.mistakes.warnings().map(told).collect())),
            false => Err(DraftError { messages }),
        }
    }
}

const HERE: Place = Place { start: 0, end: 0 };

impl Reader<'_> {
    fn draft(&mut self, draft: PolicyDraft) -> Policy {
        let mut classes = usual_classes();
        let critical = self.written(&draft.critical, Names::default());
        if let Some(read) = classes.iter_mut().find(|read| &*read.class.name == "critical") {
            read.class.conditions.extend(critical);
        }
        let names: Vec<&str> = classes.iter().map(|read| &*read.class.name).chain([OTHER]).collect();
        let mut drafts: Vec<Drafted> = Vec::new();
        for limiter in draft.limiters {
            self.check_limiter_name(HERE, &limiter.name);
            if drafts.iter().any(|known| *known.limiter.name == *limiter.name) {
                let message = format!("there are two limiters {:?}", limiter.name);
                self.error_with(HERE, message, "call one of them something else");
            }
            drafts.push(Drafted::plain(self.drafted(limiter, &names)));
        }
        self.check_workers(&drafts);
        self.check_clashes(&drafts);
        let unreachable = self.unreachable(&classes);
        drafts.iter().for_each(|drafted| self.unmatched(drafted, &classes, &unreachable));
        let per_caller = drafts.iter().any(|drafted| drafted.limiter.per.contains(&Part::Caller));
        let identify = self.callers(draft.callers, per_caller);
        let limiters = with_kinds(drafts.into_iter().map(|drafted| drafted.limiter).collect());
        Policy {
            store: StoreChoice::default(),
            identify,
            jwt: None,
            address: Default::default(),
            plans: Vec::new(),
            plan_names: Default::default(),
            default_plan: None,
            table: Default::default(),
            ignores_path_case: self.ignores_path_case,
            classes: classes.into_iter().map(|read| read.class).collect(),
            match_kinds: match_kinds(&limiters),
            limiters,
            usual: Vec::new(),
            overrides: Default::default(),
            allow: Default::default(),
            block: Default::default(),
            answers: Default::default(),
            mode: Mode::Enforce,
            gateway: Gateway::default(),
            admin_listen: None,
            stated: Default::default(),
        }
    }

    fn callers(&mut self, mut callers: Vec<Source>, are_limited: bool) -> Identify {
        for (at, source) in callers.iter().enumerate() {
            let before = callers.get(..at).unwrap_or_default();
            match source {
                Source::Header(name) if name.trim().is_empty() => {
                    let message = "callers are told apart by a header without a name";
                    self.error_with(HERE, message, "such as x-api-key");
                }
                Source::Header(name) => drop(self.check_header(HERE, name)),
                _ => {}
            }
            if before.contains(source) {
                self.error_with(HERE, "callers are told apart by the same twice", "leave it out");
            } else if before.contains(&Source::Ip) {
                let message =
                    "what stands behind `caller_address` is never looked at: every request has an address";
                self.warn(HERE, message, "call it last");
            }
        }
        if callers.is_empty() {
            callers.push(Source::Ip);
            if are_limited {
                let message = "callers are told apart by their addresses, and behind a proxy all have that of the proxy";
                self.warn(HERE, message, "say `caller_header`, or `caller_address` if there is no proxy");
            }
        }
        let tagged = |source: Source| {
            let tag = source.tag();
            (source, tag)
        };
        Identify { caller: callers.into_iter().map(tagged).collect(), plan: Vec::new(), v6_prefix: V6_PREFIX }
    }

    /// Conditions, read as those of a file.
    fn written(&mut self, texts: &[String], names: Names<'_>) -> Vec<Condition> {
        let node = |text: &String| Node { place: HERE, value: Value::Text(text.clone()) };
        match texts {
            [] => Vec::new(),
            texts => {
                let list = Node { place: HERE, value: Value::List(texts.iter().map(node).collect()) };
                self.conditions(&list, names)
            }
        }
    }

    fn drafted(&mut self, draft: LimiterDraft, classes: &[&str]) -> Limiter {
        let LimiterDraft { name, kind, matches, is_global, mode, on_store_failure, cost } = draft;
        let is_worker = matches!(kind, DraftKind::Workers(_));
        if is_worker && !matches.is_empty() {
            self.error(HERE, format!("the limiter {name:?}: workers shed by class, and match nothing"));
        }
        let names = Names { classes: Some(classes), ..Names::default() };
        let (kind, limits) = match kind {
            DraftKind::Rate(limits) => (Kind::Rate, limits),
            DraftKind::Concurrency(count) => (Kind::Concurrency, vec![Limit::leases(count, LEASE)]),
            DraftKind::Fleet { places, reserve_percent } => {
                let mode = FleetMode::Allocation;
                let critical = classes.iter().position(|class| *class == "critical").into_iter().collect();
                let limit = Limit::fleet(places, (reserve_percent, 100), mode, LEASE);
                (Kind::Fleet { critical, mode }, vec![limit])
            }
            DraftKind::Workers(source) => {
                self.check_source(&name, &source);
                let ranks = self.ranks(None, classes);
                (Kind::Worker(usual_workers(source, ranks)), Vec::new())
            }
        };
        let mut choice: SmallVec<[Limit; 1]> = SmallVec::new();
        for limit in limits {
            match limit {
                Ok(Limit::Concurrency(_) | Limit::Leases(_) | Limit::Fleet(_))
                    if matches!(kind, Kind::Rate) =>
                {
                    let message =
                        format!("the limiter {name:?} is a rate, and this limit is of requests in progress");
                    self.error_with(HERE, message, "say `concurrency` or `fleet` instead of `rate`");
                }
                Ok(limit) => choice.push(limit),
                Err(error) => self.error(HERE, format!("the limiter {name:?}: {error}")),
            }
        }
        if !idle(&choice).is_empty() {
            let message = format!("the limiter {name:?} has a rate that never decides");
            self.warn(HERE, message, "another of its rates is at least as strict in all");
        }
        Limiter {
            name: name.as_str().into(),
            kind,
            choices: if is_worker { Vec::new() } else { vec![choice] },
            candidate: None,
            mode,
            on_store_failure,
            cost,
            matches: self.written(&matches, names),
            per: if is_global { smallvec![] } else { smallvec![Part::Caller] },
            key_kind: 0,
            match_kind: None,
            by_plan: Vec::new(),
            sample_ppm: 1_000_000,
        }
    }

    fn check_source(&mut self, name: &str, source: &worker::Source) {
        let problem = match source {
            worker::Source::InFlight { workers: 0 } => "no worker at all? It must be 1 or more",
            worker::Source::Latency { target: Nanos::ZERO }
            | worker::Source::Reported { stale_after: Nanos::ZERO } => {
                "nothing takes no time at all: it must be longer"
            }
            _ => return,
        };
        self.error(HERE, format!("the limiter {name:?}: {problem}"));
    }
}
