//! What a request has to pay before it passes.

use smallvec::SmallVec;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::Ask;
use tollgate_core::policy::{Charged, KeyBytes, Mode};
use tollgate_core::store::{Charge, Rule};

use super::running::{Ruled, Running, RunningLimiter};

/// All that a request is charged to. For most requests it depends on their class, their plan and what they match, and was found out
/// when the policy was put to work.
#[derive(Clone, Debug, Default)]
pub(super) struct Toll {
    /// Every limiter that is for the request, whatever its mode.
    pub(super) charged: Vec<Charged>,
    /// Those that are enforced.
    pub(super) asked: SmallVec<[usize; 4]>,
    /// Their limits, in the order in which the store is asked.
    pub(super) dues: SmallVec<[Due; 4]>,
    /// Whether some limiter, or its candidate, may have something to decide in the dark.
    pub(super) has_watched: bool,
    /// What callers are told of all these limits, where it was put together already.
    policies: Option<Box<str>>,
}

/// One limit that has to be asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) rule: Rule,
    /// Which of [`Running::limiters`].
    pub(super) limiter: usize,
    /// Which of [`Running::ruled`].
    pub(super) ruled: usize,
    /// Whose bucket, by its place among the keys of the request.
    key: usize,
    cost: u64,
    critical: bool,
    /// Whether it must be given back when the request ends.
    pub(super) is_held: bool,
    /// Whether callers are told how they stand with it.
    pub(super) is_told: bool,
}

impl Toll {
    /// The toll by the modes of these limiters.
    pub(super) fn of(
        charged: Vec<Charged>,
        limiters: &[RunningLimiter],
        ruled: &[Ruled],
        mode: impl Fn(&RunningLimiter) -> Mode,
    ) -> Self {
        let (mut asked, mut dues, mut has_watched) = (SmallVec::new(), SmallVec::new(), false);
        for of in &charged {
            let Some(limiter) = limiters.get(of.limiter) else { continue };
            let is_enforced = effective(mode(limiter), of) == Mode::Enforce;
            has_watched |= !is_enforced || !limiter.candidate.is_empty();
            if !is_enforced {
                continue;
            }
            asked.push(of.limiter);
            for place in limiter.choices.get(of.choice).cloned().unwrap_or_default() {
                let Some(ruled) = ruled.get(place) else { continue };
                dues.push(Due {
                    rule: ruled.rule,
                    limiter: of.limiter,
                    ruled: place,
                    key: of.key,
                    cost: of.cost,
                    critical: of.critical,
                    is_held: ruled.held.is_some(),
                    is_told: ruled.is_told,
                });
            }
        }
        Self { charged, asked, dues, has_watched, policies: None }
    }

    /// The same, for many requests.
    pub(super) fn kept(mut self, ruled: &[Ruled]) -> Self {
        self.dues.shrink_to_fit();
        let policies = self.policies(ruled).join(", ");
        self.policies = Some(policies.into_boxed_str());
        self
    }

    /// What callers are told of all these limits: once, or one after another.
    pub(super) fn policies<'t>(&'t self, ruled: &'t [Ruled]) -> SmallVec<[&'t str; 4]> {
        match &self.policies {
            Some(all) => SmallVec::from_slice(&[&**all]),
            None => {
                let told = self.dues.iter().filter(|due| due.is_told);
                told.filter_map(|due| Some(ruled.get(due.ruled)?.told.policy())).collect()
            }
        }
    }

    /// The same of a request that passes without being charged.
    pub(super) fn unpaid(&self) -> Self {
        Self { charged: self.charged.clone(), has_watched: self.has_watched, ..Self::default() }
    }

    /// How a limiter is charged.
    pub(super) fn charged_to(&self, limiter: usize) -> Option<&Charged> {
        self.charged.iter().find(|charged| charged.limiter == limiter)
    }
}

impl Due {
    /// What the store is asked.
    #[inline]
    pub(super) fn charge<'k>(&self, keys: &'k [KeyBytes], lease: LeaseId) -> Charge<'k> {
        let bytes = keys.get(self.key).map_or(&[][..], |key| key);
        Charge { rule: self.rule, key: KeyRef { kind: Kind::Bytes, bytes }, ask: self.ask(lease) }
    }

    /// How much is asked for.
    #[inline]
    pub(super) fn ask(&self, lease: LeaseId) -> Ask {
        Ask { cost: self.cost, lease, critical: self.critical, taken: None }
    }

    /// Whose bucket it is.
    pub(super) fn key<'k>(&self, keys: &'k [KeyBytes]) -> Option<&'k KeyBytes> {
        keys.get(self.key)
    }
}

/// The toll of one request.
#[derive(Debug)]
pub(super) enum Owed {
    /// That of its class, its plan and what it matches: at this place among [`Running::tolls`].
    Usual(usize),
    /// Its own.
    Own(Box<Toll>),
}

impl Owed {
    /// Nothing at all.
    pub(super) const NOTHING: Self = Self::Usual(usize::MAX);

    pub(super) fn toll<'t>(&'t self, running: &'t Running) -> &'t Toll {
        static NOTHING: Toll = Toll {
            charged: Vec::new(),
            asked: SmallVec::new_const(),
            dues: SmallVec::new_const(),
            has_watched: false,
            policies: None,
        };
        match self {
            Self::Usual(place) => running.tolls.get(*place).unwrap_or(&NOTHING),
            Self::Own(toll) => toll,
        }
    }
}

/// The mode of a limiter for one request.
pub(super) fn effective(mode: Mode, charged: &Charged) -> Mode {
    if charged.only_watched { mode.min(Mode::Dark) } else { mode }
}
