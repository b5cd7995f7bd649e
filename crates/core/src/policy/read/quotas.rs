//! How much: of a limiter, a plan, a caller or a candidate, and the limits that it comes to.

use smallvec::{SmallVec, smallvec};

use super::super::document::{Node, Value};
use super::super::mistakes::Place;
use super::super::quantity::{self, Rate};
use super::super::{describe, fields};
use super::reader::{Fields, Reader};
use crate::error::LimitError;
use crate::fixed_window::WindowStart;
use crate::fleet::FleetMode;
use crate::limit::Limit;
use crate::log::SubWindows;
use crate::time::Nanos;

pub(super) type Limits = SmallVec<[Limit; 1]>;

/// How much, as it was written: of a limiter, a plan, a caller or a candidate.
#[derive(Clone, Default)]
pub(super) struct Quota {
    pub(super) place: Place,
    /// Where the number stands, if it is no rate.
    amount_place: Option<Place>,
    pub(super) rates: Option<Rates>,
    pub(super) concurrency: Option<Amount>,
    pub(super) fleet: Option<u64>,
    pub(super) reserve: Option<u64>,
    /// Whether something of it was wrong and has been told of.
    is_broken: bool,
}

#[derive(Clone)]
pub(super) enum Rates {
    Unlimited,
    OfPlan,
    Some(Vec<OneRate>),
}

#[derive(Clone, Copy)]
pub(super) struct OneRate {
    rate: Rate,
    burst: Option<Burst>,
    place: Place,
}

#[derive(Clone, Copy)]
pub(super) struct Burst {
    count: u64,
    place: Place,
}

#[derive(Clone, Copy)]
pub(super) enum Amount {
    Unlimited,
    OfPlan,
    Of(u64),
}

/// What a limiter makes of a quota.
pub(super) struct Shape {
    pub(super) kind: ShapeKind,
    pub(super) algorithm: &'static str,
    pub(super) windows: u64,
    pub(super) lease: Nanos,
    pub(super) fleet: u64,
    pub(super) reserve: u64,
    pub(super) mode: FleetMode,
    pub(super) is_settled: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum ShapeKind {
    Rate,
    Concurrency,
    Fleet,
}

impl Shape {
    pub(super) fn has_bursts(&self) -> bool {
        ["token-bucket", "leaky-bucket", "leaky-queue", "interval-bucket"].contains(&self.algorithm)
    }
}

impl Quota {
    /// Whether it is no limit at all.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.rates, Some(Rates::Unlimited)) || matches!(self.concurrency, Some(Amount::Unlimited))
    }
}

impl Reader<'_> {
    /// What a plan has.
    pub(super) fn quota(
        &mut self,
        node: &Node,
        what: &str,
        known: &'static [fields::Field],
    ) -> Option<Quota> {
        let fields = self.fields(node, what, known)?;
        let mut quota = self.quota_of(&fields, node.place);
        let of_plan = [
            ("rate", "50/s", matches!(quota.rates, Some(Rates::OfPlan))),
            ("concurrency", "20", matches!(quota.concurrency, Some(Amount::OfPlan))),
        ];
        for (name, such_as, _) in of_plan.into_iter().filter(|(_, _, is_of_plan)| *is_of_plan) {
            let place = fields.get(name).map_or(node.place, |node| node.place);
            let message = format!("`{name}: plan` is for limiters: {what} must say how much");
            self.error_with(place, message, format!("write `{name}: {such_as}`, or `{name}: unlimited`"));
            quota.is_broken = true;
        }
        Some(quota)
    }

    /// `5000/s`, `[50/s, 1000/h]` or `200`, for those who have nothing else to say.
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
            Value::List(_) if kind == "rate" => {
                let rates = Some(self.rates(node, None)?);
                Some(Quota { place: node.place, rates, ..Quota::default() })
            }
            Value::List(_) if kind != "workers" => {
                self.error_with(node.place, format!("{what} of `{kind}` is one number"), "write `200`");
                None
            }
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

    pub(super) fn quota_of(&mut self, fields: &Fields<'_>, place: Place) -> Quota {
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
        if count == 0 {
            self.error(node.place, "burst is 0: it must be from 1 on");
            return None;
        }
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
    pub(super) fn limits(&mut self, shape: &Shape, quota: &Quota, what: &str) -> Option<Option<Limits>> {
        if quota.is_broken {
            return None;
        }
        match shape.kind {
            ShapeKind::Rate => match &quota.rates {
                Some(Rates::Unlimited) => Some(None),
                Some(Rates::Some(rates)) => {
                    let (mut limits, mut placed) = (Limits::new(), Vec::new());
                    for rate in rates {
                        let limit = rate_limit(shape, rate);
                        let is_burst =
                            limit.as_ref().is_err_and(|error| ["burst", "queue"].contains(&error.field));
                        let place = rate.burst.filter(|_| is_burst).map_or(rate.place, |burst| burst.place);
                        let limit = self.built(place, limit)?;
                        let burst = rate.burst.filter(|_| shape.has_bursts()).map(|burst| burst.count);
                        let stated = describe::stated(rate.rate, burst);
                        if stated != describe::describe(&limit) {
                            self.stated.entry(limit).or_insert_with(|| stated.into());
                        }
                        limits.push(limit);
                        placed.push((limit, rate.place));
                    }
                    // What is settled afterwards is taken of each as far as it has something left.
                    if !shape.is_settled {
                        self.idle_rates(&placed);
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
            // Else it would be the limiter's own number under another name, and decide nothing.
            ShapeKind::Fleet if quota.fleet.is_none() && quota.reserve.is_none() => {
                let help = "write a number such as `400`, or { fleet: 400, reserve: 10% }; who needs no place belongs in `allow`";
                self.error_with(quota.place, format!("{what} has no places of the fleet"), help);
                None
            }
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

    /// A burst where there can be none. Plans may have one all the same: they are for several limiters.
    pub(super) fn check_bursts(&mut self, shape: &Shape, quota: &Quota) {
        let Some(Rates::Some(rates)) = &quota.rates else { return };
        if shape.kind != ShapeKind::Rate || shape.has_bursts() {
            return;
        }
        for burst in rates.iter().filter_map(|rate| rate.burst) {
            let message = format!("{:?} has no burst", shape.algorithm);
            self.error_with(burst.place, message, "leave it out, or use `algorithm: token-bucket`");
        }
    }
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
