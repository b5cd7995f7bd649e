//! Limiters and their limits.

use smallvec::{SmallVec, smallvec};

use super::super::document::{Node, Value};
use super::super::mistakes::Place;
use super::super::quantity::{self, Rate};
use super::super::{Cost, Kind, Limiter, Mode, Part, WorkerPolicy, fields};
use super::conditions::Names;
use super::reader::{Fields, Reader, spelled_out};
use crate::error::LimitError;
use crate::fixed_window::WindowStart;
use crate::fleet::FleetMode;
use crate::limit::Limit;
use crate::log::SubWindows;
use crate::store::OnFailure;
use crate::time::Nanos;
use crate::worker::{PPM, Source, Worker, WorkerSettings};

pub(super) type Limits = SmallVec<[Limit; 1]>;

/// How much, as it was written: of a limiter, a plan, a caller or a candidate.
#[derive(Clone, Default)]
pub(super) struct Quota {
    place: Place,
    /// Where the number stands, if it is no rate.
    amount_place: Option<Place>,
    rates: Option<Rates>,
    concurrency: Option<Amount>,
    fleet: Option<u64>,
    reserve: Option<u64>,
    /// Whether something of it was wrong and has been told of.
    is_broken: bool,
}

#[derive(Clone)]
enum Rates {
    Unlimited,
    OfPlan,
    Some(Vec<OneRate>),
}

#[derive(Clone, Copy)]
struct OneRate {
    rate: Rate,
    burst: Option<Burst>,
    place: Place,
}

#[derive(Clone, Copy)]
struct Burst {
    count: u64,
    place: Place,
}

#[derive(Clone, Copy)]
enum Amount {
    Unlimited,
    OfPlan,
    Of(u64),
}

/// What a limiter makes of a quota.
struct Shape {
    kind: ShapeKind,
    algorithm: &'static str,
    windows: u64,
    lease: Nanos,
    fleet: u64,
    reserve: u64,
    mode: FleetMode,
}

#[derive(Clone, Copy, PartialEq)]
enum ShapeKind {
    Rate,
    Concurrency,
    Fleet,
}

/// A limiter on its way.
pub(super) struct Drafted {
    pub(super) limiter: Limiter,
    shape: Option<Shape>,
    pub(super) place: Place,
    pub(super) lease_place: Option<Place>,
    pub(super) lease: Nanos,
}

/// What is already known when limiters are read.
pub(super) struct Context<'p> {
    pub(super) plans: &'p [(&'p str, Quota)],
    pub(super) names: Names<'p>,
    pub(super) classes: &'p [&'p str],
}

impl Drafted {
    /// One that no file says anything of.
    pub(super) fn plain(limiter: Limiter) -> Self {
        Self { limiter, shape: None, place: Place::default(), lease_place: None, lease: LEASE }
    }

    /// The field that says which of the four it is.
    pub(super) fn kind(&self) -> &'static str {
        match self.limiter.kind {
            Kind::Rate => "rate",
            Kind::Concurrency => "concurrency",
            Kind::Fleet { .. } => "fleet",
            Kind::Worker(_) => "workers",
        }
    }
}

pub(super) const LEASE: Nanos = Nanos::from_secs(60);
/// How often utilization is looked at.
const EVERY: Nanos = Nanos::from_secs(8);
const KINDS: [&str; 4] = ["rate", "concurrency", "fleet", "workers"];
/// Fields that only one kind of limiter has.
const OWN: [(&str, &[&str]); 4] = [
    ("rate", &["burst", "algorithm", "windows"]),
    ("concurrency", &["lease"]),
    ("fleet", &["lease", "reserve", "for", "count"]),
    ("workers", &[]),
];
/// Fields that a worker has no use for: it lives in its process and asks no store.
const NOT_OF_WORKERS: [&str; 6] = ["per", "match", "cost", "candidate", "sample", "on_store_failure"];

impl Reader<'_> {
    /// What a plan, a caller or a candidate has.
    pub(super) fn quota(
        &mut self,
        node: &Node,
        what: &str,
        known: &'static [fields::Field],
    ) -> Option<Quota> {
        let fields = self.fields(node, what, known)?;
        Some(self.quota_of(&fields, node.place))
    }

    /// `5000/s` or `200`, for those who have nothing else to say.
    pub(super) fn short_quota(&mut self, node: &Node, what: &str, kind: &str) -> Option<Quota> {
        match &node.value {
            Value::Text(text) if text.contains('/') => {
                let rate = self.parsed(node, what, quantity::rate)?;
                let rates = Rates::Some(vec![OneRate { rate, burst: None, place: node.place }]);
                Some(Quota { place: node.place, rates: Some(rates), ..Quota::default() })
            }
            Value::Text(text) if text.trim() == "unlimited" => Some(Quota {
                place: node.place,
                rates: Some(Rates::Unlimited),
                concurrency: Some(Amount::Unlimited),
                ..Quota::default()
            }),
            Value::Text(_) => {
                let amount = self.parsed(node, what, quantity::whole)?;
                let concurrency = Some(Amount::Of(amount));
                Some(Quota { place: node.place, concurrency, fleet: Some(amount), ..Quota::default() })
            }
            _ => {
                let fields = self.fields(node, what, fields::QUOTA)?;
                let own: &[&str] = match kind {
                    "rate" => &["rate", "burst"],
                    "fleet" => &["fleet", "reserve"],
                    _ => &["concurrency"],
                };
                for name in fields::names(fields::QUOTA).filter(|name| !own.contains(name)) {
                    if let Some(place) = fields.place_of(name) {
                        self.error(
                            place,
                            format!("`{name}` does not go with `{kind}`, which this limiter has"),
                        );
                    }
                }
                Some(self.quota_of(&fields, node.place))
            }
        }
    }

    fn quota_of(&mut self, fields: &Fields<'_>, place: Place) -> Quota {
        let burst = self.burst(fields);
        let rates = fields.get("rate").and_then(|node| self.rates(node, burst));
        if let (Some(Rates::OfPlan | Rates::Unlimited), Some(burst)) = (&rates, burst) {
            self.error_with(burst.place, "`burst` has no meaning here", "it goes with a rate such as 50/s");
        }
        if let (Some(node), None) = (fields.get("burst"), fields.get("rate")) {
            self.error_with(node.place, "`burst` goes with a rate", "add `rate: 50/s`");
        }
        let concurrency = fields.get("concurrency").and_then(|node| match node.value {
            Value::Text(ref text) if text.trim() == "unlimited" => Some(Amount::Unlimited),
            Value::Text(ref text) if text.trim() == "plan" => Some(Amount::OfPlan),
            _ => self.parsed(node, "`concurrency`", quantity::whole).map(Amount::Of),
        });
        let fleet = fields.get("fleet").and_then(|node| self.parsed(node, "`fleet`", quantity::whole));
        let reserve =
            fields.get("reserve").and_then(|node| self.parsed(node, "`reserve`", quantity::percent));
        let is_missing = |name: &str, is_read: bool| fields.get(name).is_some() && !is_read;
        let is_broken = is_missing("rate", rates.is_some())
            || is_missing("concurrency", concurrency.is_some())
            || is_missing("fleet", fleet.is_some());
        let amount_place = fields.get("concurrency").or(fields.get("fleet")).map(|node| node.place);
        Quota { place, amount_place, rates, concurrency, fleet, reserve, is_broken }
    }

    fn burst(&mut self, fields: &Fields<'_>) -> Option<Burst> {
        let node = fields.get("burst")?;
        let count = self.parsed(node, "`burst`", quantity::whole)?;
        Some(Burst { count, place: node.place })
    }

    fn rates(&mut self, node: &Node, burst: Option<Burst>) -> Option<Rates> {
        match &node.value {
            Value::Text(text) if text.trim() == "plan" => Some(Rates::OfPlan),
            Value::Text(text) if text.trim() == "unlimited" => Some(Rates::Unlimited),
            Value::List(list) => {
                let several = list.len() > 1;
                if let (true, Some(_)) = (several, burst) {
                    self.error_with(
                        node.place,
                        "`burst` of which of these rates?",
                        "write [{ rate: 10/s, burst: 20 }, 1000/h]",
                    );
                }
                let mut rates = Vec::new();
                let nodes = self.some(node);
                for node in self.at_most(nodes, 16, "rates") {
                    rates.extend(self.one_rate(node, burst.filter(|_| !several)));
                }
                (!rates.is_empty()).then_some(Rates::Some(rates))
            }
            _ => Some(Rates::Some(vec![self.one_rate(node, burst)?])),
        }
    }

    fn one_rate(&mut self, node: &Node, burst: Option<Burst>) -> Option<OneRate> {
        if !matches!(node.value, Value::Map(_)) {
            let rate = self.parsed(node, "a rate", quantity::rate)?;
            return Some(OneRate { rate, burst, place: node.place });
        }
        let fields = self.fields(node, "a rate", fields::ONE_RATE)?;
        let own = self.burst(&fields);
        match fields.get("rate") {
            Some(rate) => {
                let parsed = self.parsed(rate, "a rate", quantity::rate)?;
                Some(OneRate { rate: parsed, burst: own.or(burst), place: rate.place })
            }
            None => {
                self.error_with(node.place, "a rate is missing", "write { rate: 10/s, burst: 20 }");
                None
            }
        }
    }

    /// The limits that a quota comes to. `Some(None)`: there is none.
    fn limits(&mut self, shape: &Shape, quota: &Quota, what: &str) -> Option<Option<Limits>> {
        if quota.is_broken {
            return None;
        }
        match shape.kind {
            ShapeKind::Rate => match &quota.rates {
                Some(Rates::Unlimited) => Some(None),
                Some(Rates::Some(rates)) => {
                    let mut limits = Limits::new();
                    for rate in rates {
                        let limit = rate_limit(shape, rate);
                        let is_burst =
                            limit.as_ref().is_err_and(|error| ["burst", "queue"].contains(&error.field));
                        let place = rate.burst.filter(|_| is_burst).map_or(rate.place, |burst| burst.place);
                        limits.push(self.built(place, limit)?);
                    }
                    Some(Some(limits))
                }
                Some(Rates::OfPlan) | None => {
                    let help = "write `rate: 50/s`, or `rate: unlimited`";
                    self.error_with(quota.place, format!("{what} has no rate"), help);
                    None
                }
            },
            ShapeKind::Concurrency => match quota.concurrency {
                Some(Amount::Unlimited) => Some(None),
                Some(Amount::Of(count)) => {
                    let place = quota.amount_place.unwrap_or(quota.place);
                    let limit = self.built(place, Limit::leases(count, shape.lease))?;
                    Some(Some(smallvec![limit]))
                }
                Some(Amount::OfPlan) | None => {
                    let help = "write `concurrency: 20`, or `concurrency: unlimited`";
                    self.error_with(quota.place, format!("{what} has no concurrency"), help);
                    None
                }
            },
            ShapeKind::Fleet => {
                let reserve = (quota.reserve.unwrap_or(shape.reserve), 1_000_000);
                let places = quota.fleet.unwrap_or(shape.fleet);
                let limit = Limit::fleet(places, reserve, shape.mode, shape.lease);
                let place = quota.amount_place.unwrap_or(quota.place);
                Some(Some(smallvec![self.built(place, limit)?]))
            }
        }
    }

    fn built(&mut self, place: Place, limit: Result<Limit, LimitError>) -> Option<Limit> {
        // In the words of the file.
        let told = |error: LimitError| error.to_string().replace("buckets is", "`windows` is");
        limit.map_err(|error| self.error(place, told(error))).ok()
    }

    pub(super) fn limiter(
        &mut self,
        name: &str,
        place: Place,
        node: &Node,
        context: &Context<'_>,
    ) -> Option<Drafted> {
        let what = format!("the limiter {name:?}");
        let before = self.mistakes.told();
        let fields = self.fields(node, &what, fields::LIMITER)?;
        let kinds = fields.present(&KINDS);
        // What is missing has probably been misspelled, and that was told.
        if kinds.is_empty() && self.mistakes.told() > before {
            return None;
        }
        let [kind] = kinds.as_slice() else {
            let message = match kinds.as_slice() {
                [] => format!("{what} limits nothing"),
                several => format!("{what} is {} at once", spelled_out(several)),
            };
            self.error_with(place, message, format!("it must have one of {}", spelled_out(&KINDS)));
            return None;
        };
        self.check_fields(&fields, kind);
        let quota = self.quota_of(&fields, node.place);
        let lease = fields
            .get("lease")
            .and_then(|node| self.parsed(node, "`lease`", quantity::some_time))
            .unwrap_or(LEASE);
        let mut limiter = Limiter {
            name: name.into(),
            kind: Kind::Rate,
            choices: Vec::new(),
            candidate: None,
            mode: self.mode(&fields),
            on_store_failure: self.on_failure(&fields),
            cost: self.cost(&fields, context),
            matches: Vec::new(),
            per: self.per(&fields, kind),
            key_kind: 0,
            match_kind: 0,
            by_plan: Vec::new(),
            sample_ppm: 1_000_000,
        };
        if let Some(node) = fields.get("match") {
            limiter.matches = self.conditions(node, context.names);
        }
        if let Some(node) = fields.get("sample") {
            limiter.sample_ppm = self.parsed(node, "`sample`", quantity::percent).unwrap_or(1_000_000);
        }
        let mut shape = Shape {
            kind: ShapeKind::Rate,
            algorithm: "token-bucket",
            windows: 10,
            lease,
            fleet: 1,
            reserve: 0,
            mode: FleetMode::Allocation,
        };
        match *kind {
            "rate" => self.rate_shape(&fields, &mut shape),
            "concurrency" => {
                shape.kind = ShapeKind::Concurrency;
                limiter.kind = Kind::Concurrency;
            }
            "fleet" => {
                shape.kind = ShapeKind::Fleet;
                (shape.fleet, shape.reserve) = (quota.fleet?, quota.reserve.unwrap_or(200_000));
                shape.mode = match fields
                    .get("count")
                    .and_then(|node| self.word(node, "count", &["allocation", "total"]))
                {
                    Some("total") => FleetMode::Total,
                    _ => FleetMode::Allocation,
                };
                limiter.kind =
                    Kind::Fleet { critical: self.critical(&fields, place, context), mode: shape.mode };
            }
            _ => {
                limiter.kind = Kind::Worker(self.workers(fields.get("workers")?, context.classes)?);
                let lease_place = None;
                return Some(Drafted { limiter, shape: None, place, lease_place, lease });
            }
        }
        self.choices(&mut limiter, &shape, &quota, &what, context)?;
        if let Some(node) = fields.get("candidate")
            && let Some(candidate) = self.short_quota(node, "a candidate", kind)
        {
            self.check_bursts(&shape, &candidate);
            limiter.candidate = match self.limits(&shape, &candidate, "the candidate") {
                Some(None) => {
                    self.error_with(node.place, "a candidate that limits nothing", "leave it out");
                    None
                }
                limits => limits.flatten(),
            };
        }
        let lease_place = fields.get("lease").map(|node| node.place);
        Some(Drafted { limiter, shape: Some(shape), place, lease_place, lease })
    }

    /// Fields that do not go with the kind.
    fn check_fields(&mut self, fields: &Fields<'_>, kind: &str) {
        for (other, own) in OWN.iter().filter(|(other, _)| *other != kind) {
            let shared = OWN.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, own)| own);
            for name in own.iter().filter(|name| !shared.contains(name)) {
                if let Some(place) = fields.place_of(name) {
                    self.error(place, format!("`{name}` goes with `{other}`, and this limiter has `{kind}`"));
                }
            }
        }
        for name in NOT_OF_WORKERS.iter().filter(|_| kind == "workers") {
            if let Some(place) = fields.place_of(name) {
                self.error(
                    place,
                    format!("`{name}` has no meaning for `workers`: they shed by class, in this process"),
                );
            }
        }
    }

    fn choices(
        &mut self,
        limiter: &mut Limiter,
        shape: &Shape,
        quota: &Quota,
        what: &str,
        context: &Context<'_>,
    ) -> Option<()> {
        let of_plan = match shape.kind {
            ShapeKind::Rate => matches!(quota.rates, Some(Rates::OfPlan)),
            ShapeKind::Concurrency => matches!(quota.concurrency, Some(Amount::OfPlan)),
            ShapeKind::Fleet => false,
        };
        if !of_plan {
            self.check_bursts(shape, quota);
            match self.limits(shape, quota, what)? {
                Some(limits) => limiter.choices.push(limits),
                None => {
                    self.error_with(
                        quota.place,
                        format!("{what} limits nothing"),
                        "leave it out, or say `mode: off`",
                    );
                }
            }
            return Some(());
        }
        if context.plans.is_empty() {
            self.error_with(
                quota.place,
                format!("{what} takes its limits from plans, and there are none"),
                "add `plans: { free: { rate: 50/s } }`",
            );
            return None;
        }
        for (name, plan) in context.plans {
            let limits =
                self.limits(shape, plan, &format!("the plan {name:?}, which {what} needs it of,")).flatten();
            limiter.by_plan.push(limits.map(|limits| {
                limiter.choices.push(limits);
                limiter.choices.len() - 1
            }));
        }
        Some(())
    }

    /// The choice that a caller has for itself.
    pub(super) fn own_choice(&mut self, drafted: &mut Drafted, quota: &Quota) -> Option<usize> {
        let Some(shape) = &drafted.shape else {
            self.error(quota.place, "workers shed by class, not by caller");
            return None;
        };
        self.check_bursts(shape, quota);
        // One that has no limit gets an empty list of them.
        let limits = self.limits(shape, quota, "this caller")?.unwrap_or_default();
        drafted.limiter.choices.push(limits);
        Some(drafted.limiter.choices.len() - 1)
    }

    fn rate_shape(&mut self, fields: &Fields<'_>, shape: &mut Shape) {
        if let Some(node) = fields.get("algorithm") {
            shape.algorithm = self.word(node, "algorithm", fields::ALGORITHMS).unwrap_or(shape.algorithm);
        }
        match fields.get("windows") {
            Some(node) if shape.algorithm == "sub-windows" => {
                shape.windows = self.parsed(node, "`windows`", quantity::some).unwrap_or(shape.windows);
            }
            Some(node) => {
                self.error_with(node.place, "`windows` goes with `algorithm: sub-windows`", "leave it out")
            }
            None => {}
        }
    }

    /// A burst where there can be none. Plans may have one all the same: they are for several limiters.
    fn check_bursts(&mut self, shape: &Shape, quota: &Quota) {
        const WITH: [&str; 4] = ["token-bucket", "leaky-bucket", "leaky-queue", "interval-bucket"];
        let Some(Rates::Some(rates)) = &quota.rates else { return };
        if shape.kind != ShapeKind::Rate || WITH.contains(&shape.algorithm) {
            return;
        }
        for burst in rates.iter().filter_map(|rate| rate.burst) {
            let message = format!("{:?} has no burst", shape.algorithm);
            self.error_with(burst.place, message, "leave it out, or use `algorithm: token-bucket`");
        }
    }

    pub(super) fn mode(&mut self, fields: &Fields<'_>) -> Mode {
        let word = fields.get("mode").and_then(|node| self.word(node, "mode", fields::MODES));
        word.and_then(Mode::named).unwrap_or_default()
    }

    fn on_failure(&mut self, fields: &Fields<'_>) -> OnFailure {
        let node = fields.get("on_store_failure");
        match node.and_then(|node| self.word(node, "way to fail", fields::FAILURES)) {
            Some("open") => OnFailure::Open,
            Some("closed") => OnFailure::Closed,
            _ => OnFailure::Local,
        }
    }

    fn per(&mut self, fields: &Fields<'_>, kind: &str) -> SmallVec<[Part; 2]> {
        let Some(node) = fields.get("per") else {
            return if matches!(kind, "fleet" | "workers") { smallvec![] } else { smallvec![Part::Caller] };
        };
        let mut parts = SmallVec::new();
        let list = self.some(node);
        for node in self.at_most(list, 16, "parts of a key") {
            let part = match &node.value {
                Value::Map(_) => {
                    let header = self.fields(node, "what buckets are told apart by", fields::PER_HEADER);
                    let name = header.and_then(|fields| {
                        self.text(fields.get("header")?, "the name of a header").map(str::to_owned)
                    });
                    name.map(|name| Part::Header(name.to_ascii_lowercase()))
                }
                _ => match self.word(node, "`per`", fields::PARTS) {
                    Some("caller") => Some(Part::Caller),
                    Some("plan") => Some(Part::Plan),
                    Some("path") => Some(Part::Path),
                    Some("method") => Some(Part::Method),
                    Some("host") => Some(Part::Host),
                    Some("ip") => Some(Part::Ip),
                    Some("class") => Some(Part::Class),
                    Some("global") if list.len() > 1 => {
                        self.error(
                            node.place,
                            "`global` is one bucket for all: nothing else can stand beside it",
                        );
                        None
                    }
                    _ => None,
                },
            };
            if let Some(part) = part {
                if parts.contains(&part) {
                    self.error(node.place, "this is there twice");
                }
                parts.push(part);
            }
        }
        parts
    }

    fn cost(&mut self, limiter: &Fields<'_>, context: &Context<'_>) -> Cost {
        let Some(node) = limiter.get("cost") else { return Cost::Fixed(1) };
        if !matches!(node.value, Value::Map(_)) {
            return Cost::Fixed(self.parsed(node, "a cost", quantity::some).unwrap_or(1));
        }
        let Some(fields) = self.fields(node, "a cost", fields::COST) else { return Cost::Fixed(1) };
        const WAYS: [&str; 3] = ["class", "header", "response_header"];
        let ways = fields.present(&WAYS);
        // What a caller can leave out, and what is not known yet, must cost something: else nobody is ever refused.
        let least = if ways == ["class"] { quantity::whole } else { quantity::some };
        let otherwise =
            fields.get("otherwise").and_then(|node| self.parsed(node, "`otherwise`", least)).unwrap_or(1);
        let header = |reader: &mut Self, name: &str| {
            let name = reader.text(fields.get(name)?, "the name of a header")?;
            Some(name.to_ascii_lowercase())
        };
        let cost = match ways.as_slice() {
            ["class"] => {
                let entries = fields.get("class").and_then(|node| self.entries(node, "costs by class"));
                let mut classes = Vec::new();
                for (key, node) in entries.unwrap_or_default() {
                    match context.classes.iter().position(|class| *class == key.name) {
                        Some(class) => {
                            let cost = self.parsed(node, "a cost", quantity::whole);
                            classes.extend(cost.map(|cost| (class, cost)));
                        }
                        None => self.unknown(key.place, "class", &key.name, context.classes.iter().copied()),
                    }
                }
                Some(Cost::ByClass { classes, otherwise })
            }
            ["header"] => {
                let max = fields.get("max").and_then(|node| self.parsed(node, "`max`", quantity::some));
                header(self, "header").map(|name| Cost::Header {
                    name,
                    otherwise,
                    max: max.unwrap_or(u64::MAX),
                })
            }
            ["response_header"] => {
                if limiter.get("rate").is_none() {
                    self.error(
                        node.place,
                        "what is in progress is not settled afterwards: `response_header` goes with `rate`",
                    );
                }
                header(self, "response_header").map(|header| Cost::Settled { header, estimate: otherwise })
            }
            _ => {
                self.error(node.place, format!("a cost is a number, or by one of {}", spelled_out(&WAYS)));
                None
            }
        };
        if let (Some(place), false) = (fields.place_of("max"), ways == ["header"]) {
            self.error(place, "`max` goes with `header`");
        }
        cost.unwrap_or(Cost::Fixed(1))
    }

    fn critical(&mut self, fields: &Fields<'_>, place: Place, context: &Context<'_>) -> Vec<usize> {
        match fields.get("for") {
            Some(node) => {
                let nodes = self.some(node);
                nodes.iter().filter_map(|node| self.named(node, "class", context.classes)).collect()
            }
            None => {
                let critical = context.classes.iter().position(|class| *class == "critical");
                if critical.is_none() {
                    let help = "name the classes in `for`, or call one of them `critical`";
                    self.error_with(place, "nothing is critical to this fleet", help);
                }
                critical.into_iter().collect()
            }
        }
    }

    fn workers(&mut self, node: &Node, classes: &[&str]) -> Option<WorkerPolicy> {
        let fields = self.fields(node, "`workers`", fields::WORKERS)?;
        let usual = WorkerSettings::default();
        let share = |reader: &mut Self, name: &str, usual: u64| {
            fields.get(name).and_then(|node| reader.parsed(node, name, quantity::percent)).unwrap_or(usual)
        };
        let time = |reader: &mut Self, name: &str, usual: Nanos| {
            fields.get(name).and_then(|node| reader.parsed(node, name, quantity::duration)).unwrap_or(usual)
        };
        let every = time(self, "every", EVERY);
        let ranks = self.ranks(fields.get("shed"), classes);
        let settings = WorkerSettings {
            good_ppm: share(self, "good", usual.good_ppm),
            bad_ppm: share(self, "bad", usual.bad_ppm),
            grace: time(self, "grace", usual.grace),
            full: time(self, "full", usual.full),
            ..settings_of(every, &ranks)
        };
        if settings.good_ppm == 0 || settings.good_ppm > settings.bad_ppm || settings.bad_ppm >= PPM {
            let place = fields.get("bad").or(fields.get("good")).map_or(node.place, |node| node.place);
            self.error(place, "`good` is above 0%, `bad` below 100%, and `good` not above `bad`");
        } else if let Err(error) = Worker::new(settings) {
            let name = error.field;
            let place = fields.get(name).map_or(node.place, |node| node.place);
            let help = "it must be longer than no time, and shares such as 70% and 80% leave more room than 61% and 67.5%";
            self.error_with(place, format!("`{name}` is too short or too long for these shares"), help);
        }
        if every < Nanos::new(100_000_000) {
            let place = fields.get("every").map_or(node.place, |node| node.place);
            self.error_with(place, "utilization cannot be looked at so often", "it must be 100ms or more");
        }
        let (source, reported_in) = match fields.get("source") {
            Some(node) => self.source(node)?,
            None => (Source::Cpu, None),
        };
        Some(WorkerPolicy { settings, source, reported_in, every, ranks })
    }

    /// Where utilization is read, and the header that tells it, if one does.
    fn source(&mut self, node: &Node) -> Option<(Source, Option<String>)> {
        const REPORTED: Source = Source::Reported { stale_after: Source::STALE_AFTER };
        if !matches!(node.value, Value::Map(_)) {
            let source = match self.word(node, "source of utilization", fields::WORKER_SOURCES)? {
                "cgroup" => Source::Cgroup,
                "pressure" => Source::Pressure,
                "reported" => REPORTED,
                _ => Source::Cpu,
            };
            return Some((source, None));
        }
        let fields = self.fields(node, "a source of utilization", fields::WORKER_SOURCE)?;
        const WAYS: [&str; 3] = ["in_flight", "latency", "response_header"];
        match fields.present(&WAYS).as_slice() {
            ["in_flight"] => {
                let node = fields.get("in_flight")?;
                let workers = self.parsed(node, "`in_flight`", quantity::whole)?;
                if workers == 0 {
                    self.error_with(node.place, "no worker at all?", "it must be 1 or more");
                }
                Some((Source::InFlight { workers: workers.max(1) }, None))
            }
            ["latency"] => {
                let node = fields.get("latency")?;
                let target = self.parsed(node, "`latency`", quantity::duration)?;
                if target == Nanos::ZERO {
                    self.error(node.place, "answers cannot take no time at all");
                }
                Some((Source::Latency { target }, None))
            }
            ["response_header"] => {
                let header = self.text(fields.get("response_header")?, "the name of a header")?;
                Some((REPORTED, Some(header.to_ascii_lowercase())))
            }
            _ => {
                self.error(node.place, format!("a source is a word, or one of {}", spelled_out(&WAYS)));
                None
            }
        }
    }

    /// When each class is shed: what is least important goes first.
    pub(super) fn ranks(&mut self, shed: Option<&Node>, classes: &[&str]) -> Vec<Option<u32>> {
        let rank = |at: usize| u32::try_from(at).ok();
        if let Some(node) = shed {
            let mut ranks = vec![None; classes.len()];
            for (at, node) in self.list(node, "`shed`").iter().enumerate() {
                if let Some(class) = self.named(node, "class", classes)
                    && let Some(place) = ranks.get_mut(class)
                {
                    if place.is_some() {
                        self.error(node.place, "this class is there twice");
                    }
                    *place = rank(at);
                }
            }
            return ranks;
        }
        const USUAL: [&str; 3] = ["test", "get", "post"];
        let (other, named) = match classes.split_last() {
            Some((_, named)) => (0, named),
            None => return Vec::new(),
        };
        let usual = named.iter().all(|class| *class == "critical" || USUAL.contains(class));
        let order: Vec<&str> = match usual {
            true => USUAL.into_iter().filter(|class| named.contains(class)).collect(),
            // Most important first in the file, least important first to go, and the most important never.
            false => named.iter().skip(1).rev().copied().collect(),
        };
        let of = |class: &&str| order.iter().position(|name| name == class).and_then(rank);
        // What is of no class goes with what is least important.
        named.iter().map(of).chain([Some(other)]).collect()
    }
}

/// What follows from how often samples are taken, and from the classes that can go.
fn settings_of(every: Nanos, ranks: &[Option<u32>]) -> WorkerSettings {
    let usual = WorkerSettings::default();
    WorkerSettings {
        // Three samples may be missed before time is lost.
        max_step: usual.max_step.max(Nanos::new(every.as_u64().saturating_mul(4))),
        classes: ranks.iter().flatten().max().map_or(1, |rank| rank + 1),
        ..usual
    }
}

/// Workers of which only the source of utilization is said.
pub(super) fn usual_workers(source: Source, ranks: Vec<Option<u32>>) -> WorkerPolicy {
    WorkerPolicy { settings: settings_of(EVERY, &ranks), source, reported_in: None, every: EVERY, ranks }
}

fn rate_limit(shape: &Shape, one: &OneRate) -> Result<Limit, LimitError> {
    let Rate { count, period } = one.rate;
    let burst = one.burst.map_or(count, |burst| burst.count);
    match shape.algorithm {
        "leaky-queue" => Limit::leaky_queue(burst, count, period, 0),
        "fixed-window" => Limit::fixed_window(count, period, WindowStart::Aligned { offset: Nanos::ZERO }),
        "anchored-window" => Limit::fixed_window(count, period, WindowStart::FirstCall),
        "sliding-window" => Limit::sliding_window(count, period),
        "sliding-log" => Limit::sliding_log(count, period),
        "sub-windows" => Limit::sub_windows(count, period, shape.windows, SubWindows::NPlusOne),
        "interval-bucket" => Limit::interval_bucket(burst, count, period),
        _ => Limit::token_bucket(burst, count, period),
    }
}
