//! A policy at work: its limits are rules of a store, and its switches can be thrown.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use thiserror::Error;
use tollgate_core::answer::Told;
use tollgate_core::decision::{Reason, Standing, Unit};
use tollgate_core::policy::{
    self, Charges, Cost, DraftError, Kind, Mistakes, Mode, NoTokens, Policy, Tokens, WorkerPolicy,
};
use tollgate_core::store::{OnFailure, Rule, Store, StoreError};
use tollgate_core::worker::PPM;
use tollgate_core::{Limit, LimitError, Nanos, Outcome, Timestamp};

use super::counts::{ClassCounts, Count, LimiterCounts, LimiterStanding, LimiterStats, WorkerStanding};
use super::toll::{Owed, Toll};
use crate::clock::AnyClock;
use crate::utilization::Gauge;
use crate::worker::{Class, WorkerShedder};

/// Why a policy cannot be put to work. The one before it, if there is one, goes on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file is wrong.
    #[error("{0}")]
    Mistakes(#[from] Mistakes),
    /// The limiters that were put together are wrong.
    #[error("{0}")]
    Draft(#[from] DraftError),
    /// There is a policy, and limiters beside it.
    #[error(
        "there are a policy and limiters that were named one by one: put all of them into the policy, or leave it out"
    )]
    Twice,
    /// The file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The store cannot keep a limit.
    #[error("the limiter {limiter:?} does not fit the store: {error}")]
    Store {
        /// Which limiter.
        limiter: Arc<str>,
        /// Why.
        error: StoreError,
    },
    /// The store cannot do what a limiter is to do while it is away.
    #[error(
        "the limiter {limiter:?} has `on_store_failure: {wanted}`, and this store lets every request pass while it is away: \
         give the limiter `Failsafe::new(store)` instead, or say `on_store_failure: open`"
    )]
    Unguarded {
        /// Which limiter.
        limiter: Arc<str>,
        /// What it is to do, as it is written; `local` is meant where nothing is written.
        wanted: &'static str,
    },
    /// The keys for tokens are of no use.
    #[error("tokens cannot be verified: {0}")]
    Tokens(String),
    /// Whoever works by the same policy cannot: see [`Companion`](crate::Companion).
    #[error("{0}")]
    Companion(String),
    /// Nobody can look after the file.
    #[error("{path} cannot be watched: {error}")]
    Unwatched {
        /// Which file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

/// One policy, and all that is needed to decide by it. Nothing in it changes but switches and counts.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) policy: Policy,
    pub(super) limiters: Vec<RunningLimiter>,
    /// The limits of all of them, one after another.
    pub(super) ruled: Vec<Ruled>,
    /// What requests are charged to by [`Policy::usual_charges`], while nobody has set a mode by hand.
    pub(super) tolls: Vec<Toll>,
    pub(super) worker: Option<Arc<RunningWorker>>,
    /// By the place of the class.
    pub(super) classes: Vec<(Arc<str>, Arc<ClassCounts>)>,
    pub(super) all: Arc<Switch>,
    /// Whether somebody has set the mode of one of its limiters by hand, or that of all.
    is_switched: AtomicBool,
    /// Whether some limiter's cost is only known afterwards.
    pub(super) has_settled: bool,
    /// Who vouches for tokens by the policy's own keys.
    pub(super) vouching: Vouching,
}

/// Whoever vouches for tokens.
pub(super) struct Vouching(pub(super) Box<dyn Tokens>);

impl fmt::Debug for Vouching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vouching")
    }
}

impl Vouching {
    /// Whom the policy names. Its keys are in files beside its own.
    pub(super) fn by(policy: &Policy, folder: &Path) -> Result<Self, PolicyError> {
        let Some(jwt) = policy.jwt() else { return Ok(Self::nobody()) };
        #[cfg(feature = "jwt")]
        return Ok(Self(Box::new(super::tokens::JwtTokens::from_policy(jwt, folder)?)));
        #[cfg(not(feature = "jwt"))]
        {
            let _ = (jwt, folder);
            let message = "the policy has `identify.jwt`, and this program was built without it: turn on the feature \
                           `jwt` of tollgate, or give `LimiterBuilder::tokens`";
            Err(PolicyError::Tokens(message.to_owned()))
        }
    }

    pub(super) fn nobody() -> Self {
        Self(Box::new(NoTokens))
    }
}

#[derive(Debug)]
pub(super) struct RunningLimiter {
    pub(super) name: Arc<str>,
    pub(super) reason: Reason,
    pub(super) switch: Arc<Switch>,
    /// By the place of the class.
    counts: Vec<Arc<LimiterCounts>>,
    /// Its limits by choice: places among [`Running::ruled`]. Those of one choice are charged together.
    pub(super) choices: Vec<Range<usize>>,
    pub(super) candidate: Range<usize>,
    mode: Mode,
}

/// A limit as the store knows it, and as callers are told of it.
#[derive(Clone, Debug)]
pub(super) struct Ruled {
    pub(super) rule: Rule,
    /// What the store calls it, with all that share what was used of it.
    family: Arc<str>,
    pub(super) name: Arc<str>,
    stated: Arc<str>,
    pub(super) quota: u64,
    pub(super) window: Option<Nanos>,
    pub(super) unit: Unit,
    /// What must be given back when the request ends; how often it must be renewed until then, if it must.
    pub(super) held: Option<Option<Nanos>>,
    /// Whether it is the caller's own.
    pub(super) is_shown: bool,
    /// Whether callers are told of it in the headers of answers.
    pub(super) is_told: bool,
    /// Whether it depends on the past when the next unit is available, and an outcome does not say it.
    pub(super) is_sliding: bool,
    /// What callers are told of it.
    pub(super) told: Told,
}

impl Ruled {
    /// How a caller stands with it.
    pub(super) fn standing(&self, outcome: &Outcome) -> Standing {
        Standing {
            name: Arc::clone(&self.name),
            stated: Arc::clone(&self.stated),
            quota: self.quota,
            window: self.window,
            unit: self.unit,
            remaining: outcome.remaining,
            retry_after: outcome.retry_after,
            reset_after: outcome.reset_after,
        }
    }
}

/// The shedder of this process.
#[derive(Debug)]
pub(super) struct RunningWorker {
    pub(super) index: usize,
    pub(super) shedder: WorkerShedder,
    pub(super) gauge: Arc<Gauge>,
    pub(super) policy: WorkerPolicy,
    /// Whether it was told that a report makes no sense.
    is_misread: Arc<AtomicBool>,
}

impl RunningWorker {
    /// The class as the shedder knows it.
    pub(super) fn class(&self, class: usize) -> Class {
        self.policy.ranks.get(class).copied().flatten().map_or(Class::CRITICAL, Class)
    }

    /// The same at another place of the policy.
    fn at(&self, index: usize) -> Self {
        let (shedder, gauge) = (self.shedder.clone(), Arc::clone(&self.gauge));
        Self { index, shedder, gauge, policy: self.policy.clone(), is_misread: Arc::clone(&self.is_misread) }
    }

    /// Looks at an answer of whom is protected, of which a header may tell the utilization.
    pub(super) fn hears<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, now: Timestamp) {
        let Some(name) = self.policy.reported_in.as_deref() else { return };
        let Some(value) = header(name) else { return };
        if !self.gauge.report_text(value, now) && !self.is_misread.swap(true, Ordering::Relaxed) {
            let why = crate::utilization::parse(value).err().map(|error| error.to_string());
            let why = why.unwrap_or_default();
            tracing::warn!(
                header = name,
                "the service reports no utilization, and nothing is shed for it: {why}"
            );
        }
    }
}

/// A mode that somebody has set by hand.
#[derive(Debug, Default)]
pub(super) struct Switch(AtomicU8);

impl Switch {
    fn set(&self, mode: Option<Mode>) {
        let code = match mode {
            None => 0,
            Some(Mode::Enforce) => 1,
            Some(Mode::Dark) => 2,
            Some(Mode::Off) => 3,
        };
        self.0.store(code, Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<Mode> {
        match self.0.load(Ordering::Acquire) {
            1 => Some(Mode::Enforce),
            2 => Some(Mode::Dark),
            3 => Some(Mode::Off),
            _ => None,
        }
    }
}

/// What outlives a policy: switches and counts, by the names of limiters and classes.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    pub(super) all: Arc<Switch>,
    limiters: Mutex<HashMap<Arc<str>, LastingLimiter>>,
    classes: Mutex<HashMap<Arc<str>, Arc<ClassCounts>>>,
}

#[derive(Debug, Default)]
struct LastingLimiter {
    switch: Arc<Switch>,
    by_class: HashMap<Arc<str>, Arc<LimiterCounts>>,
}

impl Running {
    /// Puts a policy to work. Limits that the store knows already keep what was used of them.
    pub(super) fn start<S: Store>(
        policy: Policy,
        vouching: Vouching,
        store: &S,
        lasting: &Lasting,
        before: Option<&Self>,
        clock: &AnyClock,
    ) -> Result<Self, PolicyError> {
        let mut limiters = Vec::with_capacity(policy.limiters().len());
        let mut ruled = Vec::new();
        let mut worker = None;
        let classes: Vec<(Arc<str>, Arc<ClassCounts>)> =
            policy.classes().map(|name| lasting.class(name)).collect();
        for (index, limiter) in policy.limiters().iter().enumerate() {
            if let Kind::Worker(of) = &limiter.kind {
                worker = Some(started_worker(index, of, before, clock, &limiter.name)?);
            }
            let names = classes.iter().map(|(name, _)| name);
            let start = RunningLimiter::start(limiter, &policy, store, lasting, names, &mut ruled);
            limiters.push(start?);
        }
        let has_settled =
            policy.limiters().iter().any(|limiter| matches!(limiter.cost, Cost::Settled { .. }));
        let all = Arc::clone(&lasting.all);
        let by_file = |limiter: &RunningLimiter| limiter.mode.min(policy.mode());
        let tolls = policy.usual_charges();
        let tolls = tolls.map(|charged| Toll::of(charged.to_vec(), &limiters, &ruled, by_file).kept(&ruled));
        let tolls = tolls.collect();
        // Until somebody has looked.
        let is_switched = AtomicBool::new(true);
        Ok(Self { limiters, ruled, tolls, worker, classes, all, is_switched, has_settled, vouching, policy })
    }

    /// The limits at these places.
    pub(super) fn ruled(&self, places: &Range<usize>) -> &[Ruled] {
        self.ruled.get(places.clone()).unwrap_or_default()
    }

    /// Lets the store know which limits have taken the place of which.
    pub(super) fn supersede<S: Store>(&self, before: &Self, store: &S) {
        for limiter in &self.limiters {
            let Some(old) = before.limiters.iter().find(|old| old.name == limiter.name) else { continue };
            let chosen = self.policy.heirs(&limiter.name, &before.policy).into_iter();
            let choices = chosen.map(|(was, is)| (old.choices.get(was), limiter.choices.get(is)));
            let pairs = choices.chain([(Some(&old.candidate), Some(&limiter.candidate))]);
            let pairs = pairs.filter_map(|(old, new)| Some((before.ruled(old?), self.ruled(new?))));
            let pairs = pairs.flat_map(|(old, new)| {
                let heir = |old: &Ruled| new.iter().find(|new| new.family == old.family);
                old.iter().filter_map(move |old| Some((old, heir(old)?)))
            });
            // One that is still somebody's has not been changed.
            let kept = limiter.choices.iter().flat_map(|places| self.ruled(places));
            let kept: HashSet<Rule> = kept.map(|ruled| ruled.rule).collect();
            for (old, new) in pairs.filter(|(old, new)| old.rule != new.rule && !kept.contains(&old.rule)) {
                store.supersede(old.rule, new.rule);
            }
        }
    }

    /// What a request owes that is charged to these.
    #[inline]
    pub(super) fn owed(&self, charged: Charges<'_>) -> Owed {
        match charged {
            Charges::Usual(place, _) if !self.is_switched.load(Ordering::Acquire) => Owed::Usual(place),
            charged => Owed::Own(Box::new(self.own_toll(charged))),
        }
    }

    fn own_toll(&self, charged: Charges<'_>) -> Toll {
        let charged = match charged {
            Charges::Usual(_, charged) => charged.to_vec(),
            Charges::Own(charged) => charged,
        };
        let all = self.mode_of_all();
        Toll::of(charged, &self.limiters, &self.ruled, |limiter| limiter.mode_under(all))
    }

    /// The mode of a limiter at this moment.
    pub(super) fn mode(&self, limiter: &RunningLimiter) -> Mode {
        limiter.mode_under(self.mode_of_all())
    }

    /// The mode than which none is stricter.
    pub(super) fn mode_of_all(&self) -> Mode {
        self.all.get().unwrap_or(self.policy.mode())
    }

    /// Counts a request of a class.
    pub(super) fn count(&self, class: usize, which: impl Fn(&ClassCounts) -> &Count) {
        if let Some((_, counts)) = self.classes.get(class) {
            which(counts).add();
        }
    }

    /// Counts a request of a class that a limiter was for.
    #[inline]
    pub(super) fn count_asked(&self, limiter: usize, class: usize) {
        if let Some(limiter) = self.limiters.get(limiter) {
            limiter.count(class, |counts| &counts.asked);
        }
    }

    /// What a limiter has decided.
    pub(super) fn standing(&self, limiter: &RunningLimiter, lasting: &Lasting) -> LimiterStanding {
        LimiterStanding {
            name: Arc::clone(&limiter.name),
            mode: self.mode(limiter),
            is_switched: limiter.switch.get().is_some(),
            kind: limiter.reason,
            stats: lasting.stats(&limiter.name),
            by_class: self.by_class(limiter),
        }
    }

    /// What a limiter has decided of the requests of each class.
    pub(super) fn by_class(&self, limiter: &RunningLimiter) -> Vec<(Arc<str>, LimiterStats)> {
        let names = self.classes.iter().map(|(name, _)| Arc::clone(name));
        names.zip(&limiter.counts).map(|(name, counts)| (name, counts.read())).collect()
    }

    /// How the shedder of this process stands.
    pub(super) fn worker_standing(&self) -> Option<WorkerStanding> {
        let worker = self.worker.as_ref()?;
        let limiter = self.limiters.get(worker.index)?;
        let shed = |class: usize| {
            let share = worker.shedder.drop_probability(worker.class(class));
            let ppm = (i128::from(share.num) * i128::from(PPM)).checked_div(i128::from(share.den));
            ppm.and_then(|ppm| u64::try_from(ppm).ok()).unwrap_or(0)
        };
        let classes = self.classes.iter().enumerate();
        Some(WorkerStanding {
            name: Arc::clone(&limiter.name),
            utilization_ppm: worker.gauge.latest(),
            shed_ppm: classes.map(|(class, (name, _))| (Arc::clone(name), shed(class))).collect(),
        })
    }
}

fn started_worker(
    index: usize,
    policy: &WorkerPolicy,
    before: Option<&Running>,
    clock: &AnyClock,
    name: &Arc<str>,
) -> Result<Arc<RunningWorker>, PolicyError> {
    // It goes on where it is, changed or not: a reload brings nothing back that was shed for a reason.
    let before = before.and_then(|before| before.worker.as_ref());
    if let Some(worker) = before.filter(|worker| worker.policy == *policy) {
        return Ok(match worker.index == index {
            true => Arc::clone(worker),
            false => Arc::new(worker.at(index)),
        });
    }
    let of = |error: LimitError| PolicyError::Store {
        limiter: Arc::clone(name),
        error: StoreError::Unsupported(error),
    };
    let classes = (0..policy.settings.classes).map(|rank| format!("rank {rank}"));
    let shedder = WorkerShedder::builder(classes)
        .settings(policy.settings)
        .any_clock(clock.clone())
        .after(before.map(|worker| &worker.shedder))
        .build()
        .map_err(of)?;
    let known = before.filter(|worker| worker.policy.source == policy.source);
    Ok(Arc::new(RunningWorker {
        index,
        shedder,
        gauge: known
            .map_or_else(|| Arc::new(Gauge::new(policy.source.clone())), |known| Arc::clone(&known.gauge)),
        is_misread: Arc::default(),
        policy: policy.clone(),
    }))
}

impl RunningLimiter {
    fn start<'c, S: Store>(
        limiter: &policy::Limiter,
        policy: &Policy,
        store: &S,
        lasting: &Lasting,
        classes: impl Iterator<Item = &'c Arc<str>>,
        all: &mut Vec<Ruled>,
    ) -> Result<Self, PolicyError> {
        check_guard(limiter, store)?;
        let counts = classes.map(|class| lasting.counts(&limiter.name, class)).collect();
        let mut define = |family: &str, limits: &[Limit]| {
            let start = all.len();
            for (number, (limit, family_of)) in limits.iter().zip(families(family, limits)).enumerate() {
                let name = if number == 0 { family.to_owned() } else { format!("{family}-{}", number + 1) };
                let of = |error| PolicyError::Store { limiter: Arc::clone(&limiter.name), error };
                all.push(ruled(store, policy, limiter, &family_of, &name, *limit).map_err(of)?);
            }
            Ok(start..all.len())
        };
        let choices = limiter.choices.iter().map(|limits| define(&limiter.name, limits));
        let choices = choices.collect::<Result<_, PolicyError>>()?;
        let candidate = limiter.candidate.as_deref().unwrap_or_default();
        Ok(Self {
            name: Arc::clone(&limiter.name),
            reason: limiter.kind.reason(),
            switch: lasting.switch(&limiter.name),
            counts,
            choices,
            candidate: define(&format!("{} candidate", limiter.name), candidate)?,
            mode: limiter.mode,
        })
    }

    /// Its mode at this moment, where no limiter is stricter than `all`.
    pub(super) fn mode_under(&self, all: Mode) -> Mode {
        self.switch.get().unwrap_or(self.mode).min(all)
    }

    /// Counts something that it has decided of a request of a class.
    pub(super) fn count(&self, class: usize, which: impl Fn(&LimiterCounts) -> &Count) {
        if let Some(counts) = self.counts.get(class) {
            which(counts).add();
        }
    }
}

/// Whether a store does what the limiter wants while it is away.
fn check_guard<S: Store>(limiter: &policy::Limiter, store: &S) -> Result<(), PolicyError> {
    let wanted = match limiter.on_store_failure {
        OnFailure::Open => return Ok(()),
        OnFailure::Closed => "closed",
        OnFailure::Local => "local",
    };
    if store.keeps_failure_modes() || matches!(limiter.kind, Kind::Worker(_)) {
        return Ok(());
    }
    Err(PolicyError::Unguarded { limiter: Arc::clone(&limiter.name), wanted })
}

/// What the rates of a limiter are called in the store, where what was used of one is found again: by how long they last, and the
/// longest by the limiter's name alone. So neither their order nor a shorter one that comes or goes gives anybody a fresh start,
/// and callers of plans with one rate and with several share the longest.
fn families(name: &str, limits: &[Limit]) -> Vec<String> {
    let window = |limit: &Limit| limit.window().unwrap_or_default().as_u64();
    let mut order: Vec<(usize, &Limit)> = limits.iter().enumerate().collect();
    order.sort_by_key(|(_, limit)| Reverse((window(limit), limit.capacity())));
    let mut families = vec![name.to_owned(); limits.len()];
    for (rank, (place, limit)) in order.iter().enumerate().skip(1) {
        let before = order.iter().take(rank).skip(1);
        let alike = before.filter(|(_, other)| window(other) == window(limit)).count();
        if let Some(family) = families.get_mut(*place) {
            *family = format!("{name} {} {alike}", window(limit));
        }
    }
    families
}

fn ruled<S: Store>(
    store: &S,
    policy: &Policy,
    limiter: &policy::Limiter,
    family: &str,
    name: &str,
    limit: Limit,
) -> Result<Ruled, StoreError> {
    let (answers, stated) = (policy.answers(), policy.describe(&limit));
    let third = |ttl: Nanos| store.is_shared().then(|| Nanos::new(ttl.as_u64() / 3));
    let (limit, held) = match limit {
        Limit::Leases(leases) if !store.is_shared() => {
            (Limit::concurrency(leases.capacity()).map_err(StoreError::Unsupported)?, Some(None))
        }
        Limit::Leases(leases) => (limit, Some(third(leases.ttl()))),
        Limit::Fleet(fleet) if !store.is_shared() => (Limit::Fleet(fleet.counted()), Some(None)),
        Limit::Fleet(fleet) => (limit, Some(third(fleet.ttl()))),
        other => (other, None),
    };
    let unit = if held.is_some() { Unit::ConcurrentRequests } else { Unit::Requests };
    let is_shown = limiter.kind.reason() != Reason::Fleet;
    let standing = Standing {
        name: Arc::from(name),
        stated,
        quota: limit.capacity(),
        window: limit.window(),
        unit,
        remaining: 0,
        retry_after: None,
        reset_after: Nanos::ZERO,
    };
    Ok(Ruled {
        rule: store.define_with(family, limit, limiter.on_store_failure)?,
        family: Arc::from(family),
        told: Told::new(answers, limiter.kind.reason(), &limiter.name, &standing, limit.first_unit_lead()),
        name: standing.name,
        stated: standing.stated,
        quota: standing.quota,
        window: standing.window,
        unit,
        is_shown,
        is_told: is_shown && answers.headers.tells(unit),
        is_sliding: matches!(limit, Limit::Log(_) | Limit::SlidingWindow(_)),
        held,
    })
}

impl Lasting {
    /// The switch of a limiter, whether or not the present policy has it.
    fn switch(&self, name: &str) -> Arc<Switch> {
        Arc::clone(&self.limiters.lock().entry(Arc::from(name)).or_default().switch)
    }

    /// Sets the mode of a limiter by hand, or that of all.
    pub(super) fn set(&self, limiter: Option<&str>, mode: Option<Mode>) {
        match limiter {
            Some(name) => self.switch(name).set(mode),
            None => self.all.set(mode),
        }
    }

    /// Has the present policy take note of what was set by hand. To be called after each change of either.
    pub(super) fn tell(&self, running: &ArcSwap<Running>) {
        // One after another: who comes last sees what was set before, and the policy that is there then.
        let _turn = self.limiters.lock();
        let running = running.load();
        let mut switches = running.limiters.iter().map(|limiter| &limiter.switch).chain([&running.all]);
        let is_switched = switches.any(|switch| switch.get().is_some());
        running.is_switched.store(is_switched, Ordering::Release);
    }

    fn counts(&self, limiter: &Arc<str>, class: &Arc<str>) -> Arc<LimiterCounts> {
        let mut limiters = self.limiters.lock();
        let by_class = &mut limiters.entry(Arc::clone(limiter)).or_default().by_class;
        Arc::clone(by_class.entry(Arc::clone(class)).or_default())
    }

    fn class(&self, name: &str) -> (Arc<str>, Arc<ClassCounts>) {
        let name: Arc<str> = Arc::from(name);
        let counts = Arc::clone(self.classes.lock().entry(Arc::clone(&name)).or_default());
        (name, counts)
    }

    /// What a limiter has decided, also of classes that are gone.
    fn stats(&self, limiter: &Arc<str>) -> LimiterStats {
        let mut stats = LimiterStats::default();
        if let Some(limiter) = self.limiters.lock().get(limiter) {
            limiter.by_class.values().for_each(|counts| stats.add(&counts.read()));
        }
        stats
    }
}
