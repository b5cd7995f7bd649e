//! What a policy says of one request: who is calling, of which class it is, and what it is charged to.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;
use std::ops::Deref;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use super::address;
use super::condition::{host_name, method_bit};
use super::identify::{Caller, CallerName, Tokens, caller_of, plan_of, usual};
use super::path;
use super::{Cost, Kind, Limiter, Override, Part, Policy};
use crate::policy::Facts;
use crate::time::Timestamp;

/// A request, and what has been found out about it so far.
pub(crate) struct Request<'r, 'f> {
    pub(crate) facts: &'r Facts<'f>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) plan: Option<usize>,
    pub(crate) class: Option<usize>,
    /// The bit of its method.
    pub(crate) method: u8,
    /// A header that was looked up already, and came once.
    pub(crate) header: Option<(&'r str, &'r [u8])>,
    path: OnceCell<Cow<'f, str>>,
}

impl<'r, 'f> Request<'r, 'f> {
    pub(crate) fn new(facts: &'r Facts<'f>, address: Option<IpAddr>) -> Self {
        let method = method_bit(facts.method);
        Self { facts, address, plan: None, class: None, method, header: None, path: OnceCell::new() }
    }

    /// The path in its normal form.
    pub(crate) fn path(&self) -> &str {
        self.path.get_or_init(|| path::normal(self.facts.path))
    }
}

/// The key of a bucket.
pub type KeyBytes = SmallVec<[u8; 40]>;

/// Whether a request is on a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// On none.
    No,
    /// It passes without being asked anything.
    Allowed,
    /// It does not pass.
    Blocked,
    /// On none that is known, because the request says several things of who is calling. It does not pass either: whoever
    /// reads it next may take it for somebody else.
    Unclear,
}

impl Listed {
    /// Whether it does not pass.
    pub fn is_out(self) -> bool {
        matches!(self, Self::Blocked | Self::Unclear)
    }
}

/// What a policy says of one request.
#[derive(Clone)]
pub struct Planned<'p> {
    /// Whether it is on a list. Then it is charged to nothing; of one that does not pass nothing else is said.
    pub listed: Listed,
    /// Its class, by its place among [`Policy::classes`].
    pub class: usize,
    /// Its caller's plan, by its place among [`Policy::plans`].
    pub plan: Option<usize>,
    /// Whether its caller is not known: nothing was there of all that the policy tells callers by. Those without a name
    /// share one bucket of each limit per caller.
    pub is_nobody: bool,
    /// What it is charged to, in the order of the file.
    pub charged: Charges<'p>,
    /// Whose buckets: see [`Charged::key`].
    pub keys: Keys,
}

/// Whose buckets a request is charged to.
pub type Keys = SmallVec<[KeyBytes; 2]>;

/// What a request is charged to, in the order of the file.
#[derive(Clone, Debug)]
pub enum Charges<'p> {
    /// The same as every request of its class and plan that matches the same: at this place among [`Policy::usual_charges`].
    Usual(usize, &'p [Charged]),
    /// It depends on more than that, or there would be too many to be kept.
    Own(Vec<Charged>),
}

impl Deref for Charges<'_> {
    type Target = [Charged];

    fn deref(&self) -> &[Charged] {
        match self {
            Self::Usual(_, charged) => charged,
            Self::Own(charged) => charged,
        }
    }
}

/// What all requests of one class and plan are charged to that match the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Usual {
    charged: Vec<Charged>,
    /// The first limiter that is charged to each of the keys.
    keyed: Vec<usize>,
}

/// One limiter that is for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Which, by its place among [`Policy::limiters`].
    pub limiter: usize,
    /// Which of its limits, by its place among [`Limiter::choices`].
    pub choice: usize,
    /// Whose bucket, by its place among [`Planned::keys`].
    pub key: usize,
    /// How much.
    pub cost: u64,
    /// Whether the request is critical to the limiter.
    pub critical: bool,
    /// Whether the limit is the caller's own, by an override. Then the limiter's candidate is not for it.
    pub is_own: bool,
    /// Whether it is only watched, because its bucket is not among those for which it is enforced yet.
    pub only_watched: bool,
}

impl fmt::Debug for Planned<'_> {
    /// Without the keys, which tell who is calling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planned")
            .field("listed", &self.listed)
            .field("class", &self.class)
            .field("plan", &self.plan)
            .field("is_nobody", &self.is_nobody)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

impl Policy {
    /// What is to be done with a request. Nothing is charged.
    pub fn plan(&self, facts: &Facts<'_>, tokens: &dyn Tokens, now: Timestamp) -> Planned<'_> {
        self.planned(facts, tokens, now, false)
    }

    /// The same, where nobody is refused for who is calling: who would be has to go on like everybody else. Of several things that
    /// are said of it none counts.
    pub fn plan_unblocked(&self, facts: &Facts<'_>, tokens: &dyn Tokens, now: Timestamp) -> Planned<'_> {
        self.planned(facts, tokens, now, true)
    }

    /// Who sends a request, as [`plan`](Self::plan) sees it.
    pub fn caller(&self, facts: &Facts<'_>, tokens: &dyn Tokens, now: Timestamp) -> CallerName {
        caller_of(&self.identify, facts, self.address.of(facts), tokens, now).name()
    }

    #[inline]
    fn planned(&self, facts: &Facts<'_>, tokens: &dyn Tokens, now: Timestamp, goes_on: bool) -> Planned<'_> {
        let address = self.address.of(facts);
        let caller = caller_of(&self.identify, facts, address, tokens, now);
        let mut request = Request::new(facts, address);
        request.header = caller.header(&self.identify);
        let mut planned = Planned {
            listed: match self.listed(&caller, address) {
                Listed::Allowed if caller.is_address() => Listed::Allowed,
                Listed::No | Listed::Allowed if caller.is_unclear => Listed::Unclear,
                listed => listed,
            },
            class: 0,
            plan: None,
            is_nobody: caller.is_nobody(),
            charged: Charges::Own(Vec::new()),
            keys: Keys::new(),
        };
        if planned.listed.is_out() && !goes_on {
            return planned;
        }
        let overridden = if self.overrides.is_empty() {
            None
        } else {
            caller.names().find_map(|name| self.overrides.get(&name))
        };
        request.plan = overridden
            .and_then(|overridden| overridden.plan)
            .or_else(|| plan_of(self, &request, &caller, tokens, now));
        let is_of = |class: &super::Class| class.conditions.iter().any(|condition| condition.holds(&request));
        let class = self.classes.iter().position(is_of).unwrap_or(self.classes.len());
        request.class = Some(class);
        (planned.class, planned.plan) = (class, request.plan);
        if planned.listed == Listed::Allowed {
            return planned;
        }
        let matched = self.matched(&request);
        let place = self.usual_place(class, request.plan, matched);
        let has_own = overridden.is_some_and(|overridden| !overridden.choices.is_empty());
        match self.usual.get(place).filter(|_| !has_own) {
            Some(usual) => {
                let limiters = usual.keyed.iter().filter_map(|index| self.limiters.get(*index));
                limiters.for_each(|limiter| planned.keys.push(limiter.key(self, &request, &caller)));
                planned.charged = Charges::Usual(place, &usual.charged);
            }
            None => {
                let charged = self.charges(&request, &caller, matched, overridden, &mut planned.keys);
                planned.charged = Charges::Own(charged);
            }
        }
        planned
    }

    /// What a request is charged to, found limiter by limiter, and whose buckets.
    fn charges(
        &self,
        request: &Request<'_, '_>,
        caller: &Caller<'_>,
        matched: Matched,
        overridden: Option<&Override>,
        keys: &mut Keys,
    ) -> Vec<Charged> {
        let mut all: Vec<Charged> = Vec::with_capacity(self.limiters.len().min(8));
        for (index, limiter) in self.limiters.iter().enumerate() {
            if matches!(limiter.kind, Kind::Worker(_)) || !matched.has(limiter, request) {
                continue;
            }
            let own =
                overridden.and_then(|overridden| overridden.choices.iter().find(|(of, _)| *of == index));
            let choice = match own {
                Some((_, choice)) => *choice,
                None => match limiter.choice(request.plan) {
                    Some(choice) => choice,
                    None => continue,
                },
            };
            // Limiters that tell buckets apart in the same way share the key.
            let alike = |earlier: &&Charged| {
                self.limiters.get(earlier.limiter).is_some_and(|other| other.key_kind == limiter.key_kind)
            };
            let earlier = if limiter.key_kind == index { None } else { all.iter().find(alike) };
            let key = match earlier {
                Some(earlier) => earlier.key,
                None => {
                    keys.push(limiter.key(self, request, caller));
                    keys.len() - 1
                }
            };
            let is_enforced = |key: &KeyBytes| drawn(&limiter.name, key) < limiter.sample_ppm;
            all.push(Charged {
                limiter: index,
                choice,
                key,
                cost: limiter.cost(request),
                critical: request.class.is_some_and(|class| limiter.is_critical(class)),
                is_own: own.is_some(),
                only_watched: limiter.sample_ppm < 1_000_000 && !keys.get(key).is_some_and(is_enforced),
            });
        }
        all
    }

    /// What requests are charged to of which nothing counts but their class, their plan and what they match, in the places that
    /// [`Charges::Usual`] names. None where something else may count, or where there would be too many.
    pub fn usual_charges(&self) -> impl Iterator<Item = &[Charged]> {
        self.usual.iter().map(|usual| &*usual.charged)
    }

    /// Finds out once what many requests are charged to.
    pub(crate) fn with_usual(mut self) -> Self {
        /// So many are kept, for all of them together.
        const MOST: usize = 20_000;
        let (classes, plans) = (self.classes.len() + 1, self.plans.len() + 1);
        let matches = u32::try_from(self.match_kinds.len()).ok().and_then(|kinds| 1_usize.checked_shl(kinds));
        let size = [plans, matches.unwrap_or(usize::MAX), self.limiters.len().max(1)];
        let size = size.into_iter().fold(classes, usize::saturating_mul);
        if size > MOST || !self.limiters.iter().all(Limiter::is_for_all_alike) {
            return self;
        }
        let facts = Facts::default();
        let mut request = Request::new(&facts, None);
        let caller = Caller::nobody();
        let mut all = Vec::new();
        for (class, plan) in (0..classes).flat_map(|class| (0..plans).map(move |plan| (class, plan))) {
            (request.class, request.plan) = (Some(class), plan.checked_sub(1));
            for matched in (0_u64..).map(Matched).take(matches.unwrap_or(0)) {
                let charged = self.charges(&request, &caller, matched, None, &mut Keys::new());
                let mut keyed: Vec<usize> = Vec::new();
                for of in &charged {
                    if of.key == keyed.len() {
                        keyed.push(of.limiter);
                    }
                }
                all.push(Usual { charged, keyed });
            }
        }
        self.usual = all;
        self
    }

    /// Where requests of a class and a plan that match this are among those.
    fn usual_place(&self, class: usize, plan: Option<usize>, Matched(matched): Matched) -> usize {
        let place = class * (self.plans.len() + 1) + plan.map_or(0, |plan| plan + 1);
        // Where that is more than a number can tell, none are kept.
        let place = place.checked_shl(self.match_kinds.len() as u32).unwrap_or(usize::MAX);
        place.saturating_add(matched as usize)
    }

    /// What a request matches: many limiters ask the same question, and it is answered once.
    #[inline]
    fn matched(&self, request: &Request<'_, '_>) -> Matched {
        let mut matched = Matched(0);
        for (kind, index) in self.match_kinds.iter().enumerate().take(Matched::MOST) {
            if self.limiters.get(*index).is_some_and(|limiter| limiter.is_for(request)) {
                matched.0 |= 1 << kind;
            }
        }
        matched
    }

    fn listed(&self, caller: &Caller<'_>, address: Option<IpAddr>) -> Listed {
        let is_on = |list: &super::List| {
            !list.callers.is_empty() && caller.names().any(|name| list.callers.contains(&name))
                || !list.networks.is_empty() && address.is_some_and(|address| list.networks.contains(address))
        };
        if is_on(&self.allow) {
            Listed::Allowed
        } else if is_on(&self.block) {
            Listed::Blocked
        } else {
            Listed::No
        }
    }
}

/// Which of the first [kinds](Limiter::match_kind) of limiters a request is for.
#[derive(Clone, Copy)]
struct Matched(u64);

impl Matched {
    /// Who has more kinds of limiters asks them one by one.
    const MOST: usize = 64;

    #[inline]
    fn has(self, limiter: &Limiter, request: &Request<'_, '_>) -> bool {
        match limiter.match_kind {
            None => true,
            Some(kind) if kind < Self::MOST => self.0 & (1 << kind) != 0,
            Some(_) => limiter.is_for(request),
        }
    }
}

/// A number below a million that is the same for a bucket on every node and at all times, and another for every limiter.
fn drawn(limiter: &str, key: &KeyBytes) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(limiter.as_bytes());
    hasher.write(&[0xff]);
    hasher.write(key);
    // The upper bits, so that no share of a million is favoured.
    ((u128::from(hasher.finish()) * 1_000_000) >> 64) as u64
}

impl Limiter {
    fn is_for(&self, request: &Request<'_, '_>) -> bool {
        self.matches.iter().any(|condition| condition.holds(request))
    }

    /// Whether nothing of a request counts but its class, its plan and what it matches.
    fn is_for_all_alike(&self) -> bool {
        let costs_the_same = matches!(self.cost, Cost::Fixed(_) | Cost::ByClass { .. });
        let is_charged = !matches!(self.kind, Kind::Worker(_));
        !is_charged || self.sample_ppm == 1_000_000 && costs_the_same
    }

    /// The share of its buckets for which it is enforced, in percent, where that is not all of them.
    pub fn sample_percent(&self) -> Option<f64> {
        (self.sample_ppm < 1_000_000).then_some(self.sample_ppm as f64 / 1e4)
    }

    /// Whether what a request costs is only known afterwards.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.cost, Cost::Settled { .. })
    }

    pub(super) fn choice(&self, plan: Option<usize>) -> Option<usize> {
        if self.by_plan.is_empty() { Some(0) } else { *self.by_plan.get(plan?)? }
    }

    fn is_critical(&self, class: usize) -> bool {
        matches!(&self.kind, Kind::Fleet { critical, .. } if critical.contains(&class))
    }

    fn cost(&self, request: &Request<'_, '_>) -> u64 {
        // What a door knows is for limiters that ask what a request costs: one that counts logins goes on counting them.
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::Given => request.facts.cost.unwrap_or(1),
            Cost::Settled { estimate, .. } => request.facts.cost.unwrap_or(*estimate),
            Cost::ByClass { classes, otherwise } => {
                let own = classes.iter().find(|(class, _)| Some(*class) == request.class);
                own.map_or(*otherwise, |(_, cost)| *cost)
            }
            Cost::Header { name, otherwise, max } => {
                if let Some(cost) = request.facts.cost {
                    return cost;
                }
                let named = request.facts.only_header(name).and_then(|value| std::str::from_utf8(value).ok());
                // A caller who could say that it costs nothing would.
                let is_number =
                    |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let cost = named.filter(is_number).map(|text| text.parse::<u64>().unwrap_or(u64::MAX));
                cost.map_or(*otherwise, |cost| cost.clamp(1, *max))
            }
        }
    }

    /// Whose bucket it is. Parts have their kind and their length before them, so that different ones never meet.
    fn key(&self, policy: &Policy, request: &Request<'_, '_>, caller: &Caller<'_>) -> KeyBytes {
        let mut key = KeyBytes::new();
        if let [Part::Caller] = self.per.as_slice() {
            key.extend_from_slice(&caller.tag);
            key.extend_from_slice(caller.value());
            return key;
        }
        for part in &self.per {
            let mut put = |kind: u8, value: &[u8]| {
                key.push(kind);
                key.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
                key.extend_from_slice(value);
            };
            match part {
                Part::Caller => {
                    put(1, &caller.tag);
                    put(2, caller.value());
                }
                Part::Plan => put(
                    3,
                    request
                        .plan
                        .and_then(|plan| policy.plans.get(plan))
                        .map_or(b"", |plan| plan.name.as_bytes()),
                ),
                Part::Path => {
                    let path = request.path();
                    let mut holding = self.matches.iter().filter(|condition| condition.holds(request));
                    let pattern = holding.find_map(|condition| condition.pattern(path));
                    match pattern {
                        Some(pattern) => put(4, pattern.shape().as_bytes()),
                        None if policy.ignores_path_case => put(5, path.to_ascii_lowercase().as_bytes()),
                        None => put(5, path.as_bytes()),
                    }
                }
                // HEAD shares the bucket of GET, as conditions for GET cover it.
                Part::Method => match request.facts.method.to_ascii_uppercase().as_str() {
                    "HEAD" => put(6, b"GET"),
                    method => put(6, method.as_bytes()),
                },
                Part::Host => put(7, &host_name(request.facts.host).to_ascii_lowercase()),
                Part::Header(name) => match request.facts.said(name).one() {
                    Some(value) => put(8, &usual(name, value)),
                    None => put(9, b""),
                },
                Part::Ip => match request.address.map(|ip| address::subject(ip, policy.identify.v6_prefix)) {
                    Some(IpAddr::V4(ip)) => put(10, &ip.octets()),
                    Some(IpAddr::V6(ip)) => put(11, &ip.octets()),
                    None => put(12, b""),
                },
                Part::Class => {
                    put(13, policy.class_name(request.class.unwrap_or(policy.classes.len())).as_bytes());
                }
            }
        }
        key
    }
}
