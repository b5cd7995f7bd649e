//! The policy: who is calling, what kind of request it is, and which limits it is charged to.
//!
//! A file goes through three forms: as it was written ([`document`](self), with the place of everything), validated and
//! compiled ([`Policy`]), and running (in a `Limiter`, where its limits are rules of a store). Start and reload take the same
//! way.
//!
//! ```
//! use tollgate_core::Timestamp;
//! use tollgate_core::policy::{Facts, NoTokens, Policy};
//!
//! let (policy, warnings) = Policy::read(
//!     "identify: { caller: [header: x-api-key] }
//! path_case: insensitive
//! limiters:
//!   request-rate: { rate: 50/s, burst: 100 }
//!   logins: { rate: 5/min, algorithm: sliding-log, match: [POST /login] }",
//! )?;
//! assert!(warnings.is_empty(), "{warnings}");
//! let headers = [("x-api-key", "sk_1")];
//! let facts = Facts { method: "GET", path: "/v1/users", headers: &headers, ..Facts::default() };
//! let planned = policy.plan(&facts, &NoTokens, Timestamp::ZERO);
//! assert_eq!(planned.charged.len(), 1, "this is no login");
//! # Ok::<_, tollgate_core::policy::Mistakes>(())
//! ```

pub mod address;
mod condition;
mod describe;
mod document;
mod facts;
mod fields;
mod gateway;
mod identify;
mod mistakes;
pub mod path;
mod plan;
mod quantity;
mod read;
mod schema;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use self::address::{AddressHeader, ClientAddress, Networks};
use self::condition::Condition;
use self::identify::{Identify, Named};
use self::table::PlanTable;
use crate::answer::AnswerStyle;
use crate::decision::Reason;
use crate::fleet::FleetMode;
use crate::limit::Limit;
use crate::store::OnFailure;
use crate::time::Nanos;
use crate::worker::{Source, WorkerSettings};

pub use facts::{Facts, Headers, Said};
pub use gateway::{
    AddedHeaders, ConnectionLimits, Gateway, GatewayTls, Health, Protocol, Server, Sizes, Timeouts, Upstream,
    address_in_url, parse_address, parse_server,
};
pub use identify::{CallerName, NoTokens, Tokens};
pub use mistakes::{Mistake, Mistakes, Severity};
pub use plan::{Charged, Charges, KeyBytes, Keys, Listed, Planned};
pub use read::{DraftError, LimiterDraft, PolicyDraft, Surroundings};
pub use schema::schema;

/// A policy in which everything fits together.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    store: StoreChoice,
    identify: Identify,
    jwt: Option<Jwt>,
    address: ClientAddress,
    plans: Vec<Plan>,
    plan_names: HashMap<Arc<str>, usize>,
    default_plan: Option<usize>,
    table: PlanTable,
    /// Whether the path is part of a key regardless of its case.
    ignores_path_case: bool,
    classes: Vec<Class>,
    limiters: Vec<Limiter>,
    /// What requests are charged to by class, plan and what they match, where nothing else counts.
    usual: Vec<plan::Usual>,
    /// The first limiter of each [`Limiter::match_kind`].
    match_kinds: Vec<usize>,
    overrides: HashMap<Named, Override>,
    allow: List,
    block: List,
    answers: AnswerStyle,
    mode: Mode,
    gateway: Gateway,
    admin_listen: Option<String>,
    /// Limits that the file states in other words than [`Policy::describe`] would.
    stated: HashMap<Limit, Arc<str>>,
}

/// What becomes of what a limiter decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// It is not even asked.
    Off,
    /// It decides and counts, and refuses nobody.
    Dark,
    /// What it refuses is refused.
    #[default]
    Enforce,
}

impl Mode {
    /// All of them, as they are written.
    pub const NAMES: [&'static str; 3] = ["enforce", "dark", "off"];

    /// The mode of a name.
    ///
    /// ```
    /// use tollgate_core::policy::Mode;
    ///
    /// assert_eq!(Mode::named("dark"), Some(Mode::Dark));
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "enforce" => Some(Self::Enforce),
            "dark" => Some(Self::Dark),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    /// The name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Dark => "dark",
            Self::Off => "off",
        }
    }
}

/// Where states are kept.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreChoice {
    /// The address of a shared store; none: the memory of this process.
    pub url: Option<String>,
    /// The secret from which names of keys are made.
    pub secret: Option<String>,
    /// What all keys begin with.
    pub prefix: Option<String>,
    /// The longest that a decision may take.
    pub deadline: Option<Nanos>,
    /// How many processes share the store, until it has told.
    pub expected_nodes: Option<u64>,
    /// The most memory that states may take in this process.
    pub max_bytes: Option<u64>,
}

impl fmt::Debug for StoreChoice {
    /// Neither the secret nor a password in the address is anybody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreChoice")
            .field("is_shared", &self.url.is_some())
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("expected_nodes", &self.expected_nodes)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// How tokens are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jwt {
    /// A file with a public key (PEM).
    pub key_file: Option<String>,
    /// A file with a set of keys.
    pub jwks_file: Option<String>,
    /// The variable of the environment that holds a shared secret.
    pub secret_env: Option<String>,
    /// Algorithms that are accepted.
    pub algorithms: Vec<String>,
    /// The header that carries the token: `authorization` unless said otherwise.
    pub header: Option<String>,
    /// Who must have issued it.
    pub issuer: Option<String>,
    /// For whom it must be.
    pub audience: Option<String>,
}

/// A plan that callers may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub name: Arc<str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Class {
    pub(crate) name: Arc<str>,
    pub(crate) conditions: Vec<Condition>,
}

/// The class of requests that are of no other.
pub(crate) const OTHER: &str = "other";

/// A limiter of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Limiter {
    /// Its name.
    pub name: Arc<str>,
    /// Which of the four it is.
    pub kind: Kind,
    /// Limits that it may have, for different plans and callers. Several rates of one are charged together.
    pub choices: Vec<SmallVec<[Limit; 1]>>,
    /// A second threshold that is only counted.
    pub candidate: Option<SmallVec<[Limit; 1]>>,
    /// What becomes of what it decides.
    pub mode: Mode,
    /// What it does while the store is away.
    pub on_store_failure: OnFailure,
    /// What requests cost.
    pub cost: Cost,
    matches: Vec<Condition>,
    per: SmallVec<[Part; 2]>,
    /// The same number for limiters whose keys are always the same: the place of the first.
    key_kind: usize,
    /// The same number for limiters that are for the same requests, counted from 0; none if it is for all.
    match_kind: Option<usize>,
    /// Which choice is for which plan; empty if the first is for all.
    by_plan: Vec<Option<usize>>,
    sample_ppm: u64,
}

impl Policy {
    /// What has become of the choices of a limiter that an older policy has by the same name: for each of those, the one that
    /// whoever it was for has now.
    pub fn heirs(&self, limiter: &str, older: &Self) -> Vec<(usize, usize)> {
        let place = |policy: &Self| policy.limiters.iter().position(|known| *known.name == *limiter);
        let (Some(index), Some(old_index)) = (place(self), place(older)) else { return Vec::new() };
        let (Some(now), Some(before)) = (self.limiters.get(index), older.limiters.get(old_index)) else {
            return Vec::new();
        };
        let plan = |old: usize| {
            let name = &older.plans.get(old)?.name;
            self.plans.iter().position(|plan| plan.name == *name)
        };
        let of_plan = |old: Option<usize>| now.choice(old.and_then(plan));
        let of_plans = before.by_plan.iter().enumerate();
        let by_plan = of_plans.filter_map(|(old, choice)| Some(((*choice)?, of_plan(Some(old))?)));
        let of_all =
            (before.by_plan.is_empty() && !before.choices.is_empty()).then(|| Some((0, now.choice(None)?)));
        let own = older.overrides.iter().flat_map(|(caller, was)| {
            let is = self.overrides.get(caller);
            let of_caller =
                is.and_then(|is| is.choices.iter().find(|(of, _)| *of == index)).map(|(_, choice)| *choice);
            let choice = of_caller.or_else(|| of_plan(was.plan));
            let choices = was.choices.iter().filter(|(of, _)| *of == old_index);
            choices.filter_map(move |(_, old)| Some((*old, choice?))).collect::<Vec<_>>()
        });
        of_all.flatten().into_iter().chain(by_plan).chain(own).collect()
    }
}

impl Limiter {
    /// Whether all requests share one bucket. Its key is empty.
    pub fn is_global(&self) -> bool {
        self.per.is_empty()
    }
}

/// Which of the four limiters it is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// So many requests in so long.
    Rate,
    /// So many requests in progress.
    Concurrency,
    /// A share of the fleet is kept for what is critical.
    Fleet {
        /// The classes that are critical.
        critical: Vec<usize>,
        /// What the capacity means for them.
        mode: FleetMode,
    },
    /// A worker in trouble sheds class by class.
    Worker(WorkerPolicy),
}

impl Kind {
    /// Why it refuses.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Rate => Reason::Rate,
            Self::Concurrency => Reason::Concurrency,
            Self::Fleet { .. } => Reason::Fleet,
            Self::Worker(_) => Reason::Worker,
        }
    }
}

/// How a worker in trouble sheds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPolicy {
    /// The controller.
    pub settings: WorkerSettings,
    /// Where its samples come from.
    pub source: Source,
    /// The header of the protected service's answers that tells its utilization, if one does.
    pub reported_in: Option<String>,
    /// Whether the gateway reports how busy the servers behind it are.
    pub watches_upstreams: bool,
    /// How often a sample is taken.
    pub every: Nanos,
    /// When each class is shed, by its place among [`Policy::classes`]: 0 goes first, none never.
    pub ranks: Vec<Option<u32>>,
}

/// What requests cost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cost {
    /// The same for all.
    Fixed(u64),
    /// By class.
    ByClass {
        /// Costs of some classes.
        classes: Vec<(usize, u64)>,
        /// That of all others.
        otherwise: u64,
    },
    /// What the door says ([`Facts::cost`]), and 1 where it says nothing.
    Given,
    /// What a header of the request says, at least 1; or the door, which goes before it.
    Header {
        /// The header.
        name: String,
        /// The cost of requests without it.
        otherwise: u64,
        /// The most that is believed.
        max: u64,
    },
    /// What a header of the answer says. Until then an estimate is charged.
    Settled {
        /// The header of the answer.
        header: String,
        /// What is charged before, where the door does not say.
        estimate: u64,
    },
}

/// What buckets are told apart by. In a limiter they stand in this order, however they were written: the same parts are the same
/// buckets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Caller,
    Plan,
    Path,
    Method,
    Host,
    Header(String),
    Ip,
    Class,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Override {
    pub(crate) plan: Option<usize>,
    /// Limiters that have a limit for this caller alone, and which.
    pub(crate) choices: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct List {
    pub(crate) callers: HashSet<Named>,
    pub(crate) networks: Networks,
}

impl Policy {
    /// Reads a file's text. Everything that is wrong is told at once; what is only unwise comes with the policy.
    pub fn read(text: &str) -> Result<(Self, Mistakes), Mistakes> {
        read::policy(text, &read::Anywhere)
    }

    /// As [`read`](Self::read), where it is known which addresses and files are of use.
    pub fn read_in(text: &str, surroundings: &dyn Surroundings) -> Result<(Self, Mistakes), Mistakes> {
        read::policy(text, surroundings)
    }

    /// A policy without a file.
    pub fn builder() -> PolicyDraft {
        PolicyDraft::default()
    }

    /// What can be used of a text that is of no use as a policy: the doors, the servers behind them, the store, and whose word
    /// is taken. It limits nothing. None if there is nothing to be read in it.
    pub fn salvage(text: &str) -> Option<Self> {
        read::salvage(text)
    }

    /// Names of all headers of requests that decide who is calling, what kind of request it is, and what it costs.
    pub fn headers_read(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for source in self.identify.caller.iter().map(|(source, _)| source).chain(&self.identify.plan) {
            if let identify::Source::Header(name) = source {
                names.push(name);
            }
        }
        names.extend(self.jwt.as_ref().and_then(|jwt| jwt.header.as_deref()));
        let conditions = self.classes.iter().flat_map(|class| &class.conditions);
        let conditions = conditions.chain(self.limiters.iter().flat_map(|limiter| &limiter.matches));
        for condition in
            conditions.chain(self.gateway.upstreams.iter().flat_map(|upstream| &upstream.matches))
        {
            condition.headers_read(&mut names);
        }
        for limiter in &self.limiters {
            names.extend(limiter.per.iter().filter_map(|part| match part {
                Part::Header(name) => Some(name.as_str()),
                _ => None,
            }));
            if let Cost::Header { name, .. } = &limiter.cost {
                names.push(name);
            }
        }
        names
    }

    /// Bytes that a file may have. Larger ones are not looked at.
    pub const LARGEST: usize = document::LARGEST;

    /// Where states are kept.
    pub fn store(&self) -> &StoreChoice {
        &self.store
    }

    /// How tokens are verified, if any are asked for.
    pub fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }

    /// All files that it names, as it names them: keys for tokens, certificates of the gateway and for its servers.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let keys = self.jwt.iter().flat_map(|jwt| [&jwt.key_file, &jwt.jwks_file]).flatten();
        let tls = self.gateway.tls.iter();
        let certificates =
            tls.flat_map(|tls| [Some(&tls.certificate), Some(&tls.key), tls.client_ca.as_ref()]);
        let authorities = self.gateway.upstreams.iter().filter_map(|upstream| upstream.ca.as_ref());
        keys.chain(certificates.flatten()).chain(authorities).map(String::as_str)
    }

    /// All limiters, in the order of the file.
    pub fn limiters(&self) -> &[Limiter] {
        &self.limiters
    }

    /// All plans.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Names of all classes; the last is of those requests that are of no other.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|class| &*class.name).chain([OTHER])
    }

    /// The name of a class.
    pub fn class_name(&self, class: usize) -> &str {
        self.classes.get(class).map_or(OTHER, |class| &class.name)
    }

    /// How callers are answered.
    pub fn answers(&self) -> &AnswerStyle {
        &self.answers
    }

    /// The mode of everything: no limiter is stricter.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Where the admin door listens: an address, or `off`.
    pub fn admin_listen(&self) -> Option<&str> {
        self.admin_listen.as_deref()
    }

    /// The address of a request's client; none if the peer is not known.
    pub fn client_address(&self, facts: &Facts<'_>) -> Option<IpAddr> {
        self.address.of(facts)
    }

    /// Whether a peer's word on whom it speaks for is taken.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.address.trusted.contains(peer)
    }

    /// The header in which proxies say whom they speak for.
    pub fn address_header(&self) -> &AddressHeader {
        &self.address.header
    }

    /// Whether callers, or buckets of some limiter, are told apart by address.
    pub fn asks_for_addresses(&self) -> bool {
        self.identify.caller.iter().any(|(source, _)| *source == identify::Source::Ip)
            || self.limiters.iter().any(|limiter| limiter.per.contains(&Part::Ip))
    }

    pub(crate) fn plan_named(&self, name: &str) -> Option<usize> {
        self.plan_names.get(name).copied()
    }
}
