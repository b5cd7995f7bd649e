//! Limiters: what they are, for whom, and what becomes of what they decide.

use super::super::document::Node;
use super::super::mistakes::Place;
use super::super::{Kind, Limiter, Mode, fields, quantity};
use super::conditions::Names;
use super::quotas::{Amount, Quota, Rates, Shape, ShapeKind};
use super::reader::{Fields, Reader, spelled_out};
use crate::fleet::FleetMode;
use crate::store::OnFailure;
use crate::time::Nanos;

/// A limiter on its way.
pub(super) struct Drafted {
    pub(super) limiter: Limiter,
    shape: Option<Shape>,
    pub(super) place: Place,
    pub(super) lease_place: Option<Place>,
    pub(super) sample_place: Option<Place>,
    pub(super) candidate_place: Option<Place>,
    pub(super) per_place: Option<Place>,
    pub(super) lease: Nanos,
    /// Whether the file names its algorithm.
    pub(super) has_algorithm: bool,
    /// How many of the limiter's choices are not of single callers.
    pub(super) common: usize,
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
        Self {
            common: limiter.choices.len(),
            limiter,
            shape: None,
            place: Place::default(),
            lease_place: None,
            candidate_place: None,
            per_place: None,
            sample_place: None,
            lease: LEASE,
            has_algorithm: false,
        }
    }

    /// Whether its rates can have bursts.
    pub(super) fn has_bursts(&self) -> bool {
        self.shape.as_ref().is_some_and(Shape::has_bursts)
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
        let kinds = fields.present(fields::KINDS);
        // What is missing has probably been misspelled, and that was told.
        if kinds.is_empty() && self.mistakes.told() > before {
            return None;
        }
        let [kind] = kinds.as_slice() else {
            let message = match kinds.as_slice() {
                [] => format!("{what} limits nothing"),
                several => format!("{what} is {} at once", spelled_out(several)),
            };
            self.error_with(place, message, format!("it must have one of {}", spelled_out(fields::KINDS)));
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
            match_kind: None,
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
            is_settled: limiter.is_settled(),
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
                return Some(Drafted { place, ..Drafted::plain(limiter) });
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
        let place_of = |name: &str| fields.get(name).map(|node| node.place);
        Some(Drafted {
            common: limiter.choices.len(),
            limiter,
            shape: Some(shape),
            place,
            lease_place: place_of("lease"),
            sample_place: place_of("sample"),
            candidate_place: place_of("candidate"),
            per_place: place_of("per"),
            lease,
            has_algorithm: fields.get("algorithm").is_some(),
        })
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

    pub(super) fn mode(&mut self, fields: &Fields<'_>) -> Mode {
        let word = fields.get("mode").and_then(|node| self.word(node, "mode", fields::MODES));
        word.and_then(Mode::named).unwrap_or_default()
    }

    fn on_failure(&mut self, fields: &Fields<'_>) -> OnFailure {
        let node = fields.get("on_store_failure");
        match node.and_then(|node| self.word(node, "way to fail", fields::FAILURES)) {
            Some("local") => OnFailure::Local,
            Some("closed") => OnFailure::Closed,
            _ => OnFailure::Open,
        }
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
}
