//! What becomes of a request, from its first byte to the last of its answer: counted always, and written down if asked for.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::StatusCode;
use tokio::time::Instant;
use tollgate::{Permit, Refusal, WatchedDecisions};
use tollgate_core::policy::CallerName;

use super::doing::Doing;
use super::rejection_log::{By, Rejection};
use super::site::Watch;
use crate::access_log::Entry;
use crate::store::AnyStore;

/// One request.
pub(super) struct Track {
    watch: Arc<Watch>,
    doing: Arc<Doing>,
    begun: Instant,
    status: u16,
    bytes: u64,
    is_whole: bool,
    ended: Option<Instant>,
    entry: Option<Box<Entry>>,
    watched: Option<Box<Watched>>,
}

/// What is needed to log, when the request ends, who would have been rejected.
struct Watched {
    decisions: WatchedDecisions,
    caller: CallerName,
    class: Arc<str>,
}

impl Watched {
    /// Logs who would have been rejected by limiters that are dark, and by candidates.
    fn log(&self, watch: &Watch, begun: Instant) {
        for would_reject in self.decisions.would_reject() {
            let by = if would_reject.is_candidate { By::Candidate } else { By::DarkLimiter };
            let (limiter, class) = (&*would_reject.limiter, Some(&*self.class));
            watch.rejections.add(&Rejection { by, limiter, class, at: begun }, || self.caller.clone());
        }
    }
}

impl Track {
    pub(super) fn begin(watch: &Arc<Watch>, doing: &Arc<Doing>) -> Self {
        doing.requests.fetch_add(1, Ordering::AcqRel);
        doing.served.fetch_add(1, Ordering::Relaxed);
        watch.counts.in_flight.fetch_add(1, Ordering::Relaxed);
        Self {
            entry: watch.log.is_some().then(Box::default),
            watch: Arc::clone(watch),
            doing: Arc::clone(doing),
            begun: Instant::now(),
            status: 0,
            bytes: 0,
            is_whole: false,
            ended: None,
            watched: None,
        }
    }

    /// When the request came in.
    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) fn doing(&self) -> &Arc<Doing> {
        &self.doing
    }

    /// Who asks for what.
    pub(super) fn asked(&mut self, method: &str, path: &str, client: Option<IpAddr>) {
        if let Some(entry) = &mut self.entry {
            entry.method.push_str(method);
            entry.path.push_str(path);
            entry.client = client;
        }
    }

    /// Logs that the request was rejected, and who sent it.
    pub(super) fn rejected(&mut self, refusal: &Refusal, caller: impl Fn() -> CallerName) {
        let (limiter, class) = (refusal.limiter(), refusal.class());
        let rejection = Rejection { by: By::Limiter, limiter, class, at: self.begun };
        self.watch.rejections.add(&rejection, &caller);
        self.note(|entry| {
            entry.verdict = "refused";
            entry.caller = Some(caller());
            entry.limiter = Some(limiter.to_owned());
            entry.degraded = refusal.is_degraded();
            entry.class = class.map(Arc::from);
            entry.plan = refusal.plan().map(Arc::from);
        });
    }

    /// Takes note of how a request was decided that may pass, and of who sent it.
    pub(super) fn passed(&mut self, permit: &Permit<AnyStore>, caller: impl Fn() -> CallerName) {
        if self.entry.is_none() && permit.watched().is_none() {
            return;
        }
        let decision = permit.decision();
        self.watched = permit.watched().map(|decisions| {
            let class = Arc::clone(&decision.class);
            Box::new(Watched { decisions: decisions.clone(), caller: caller(), class })
        });
        self.note(|entry| {
            entry.verdict = "passed";
            entry.caller = Some(caller());
            entry.class = Some(decision.class);
            entry.plan = decision.plan;
            entry.degraded = decision.degraded;
            entry.watched = permit.watched().cloned();
        });
    }

    /// Writes more into the log, if there is one.
    pub(super) fn note(&mut self, write: impl FnOnce(&mut Entry)) {
        if let Some(entry) = &mut self.entry {
            write(entry);
        }
    }

    pub(super) fn answered(&mut self, status: StatusCode) {
        self.status = status.as_u16();
    }

    /// Why it went wrong, for whoever looks after the service.
    pub(super) fn fails(&mut self, why: &str) {
        self.watch.counts.upstream_failures.fetch_add(1, Ordering::Relaxed);
        self.note(|entry| entry.error = Some(why.to_owned()));
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    pub(super) fn ended(&mut self, is_whole: bool, now: Instant) {
        self.is_whole = is_whole;
        self.ended = Some(now);
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        self.doing.requests.fetch_sub(1, Ordering::AcqRel);
        let took = self.ended.unwrap_or_else(Instant::now) - self.begun;
        let counts = &self.watch.counts;
        counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        counts.answered(self.status, took);
        if let Some(entry) = &mut self.entry {
            // A client that went away before there was an answer, as others log it.
            entry.status = if self.status == 0 { 499 } else { self.status };
            entry.bytes = self.bytes;
            entry.took = took;
            entry.is_whole = self.is_whole;
            if !self.is_whole && self.watch.is_over.load(Ordering::Relaxed) {
                entry.error = Some("the gateway ended before the answer did".to_owned());
            }
        }
        let entry = self.entry.take();
        let Some(watched) = self.watched.take() else { return self.watch.write(entry) };
        let (watch, begun) = (Arc::clone(&self.watch), self.begun);
        // The line says what they would have done, so it waits for them. Nobody waits for the line.
        watched.decisions.clone().when_decided(move || {
            watched.log(&watch, begun);
            watch.write(entry);
        });
    }
}
