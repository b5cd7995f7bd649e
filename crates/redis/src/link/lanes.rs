//! What waits to be sent: in a cluster by tag, so that a node that hangs holds up nobody else's; elsewhere all in one lane.

use std::collections::VecDeque;

use super::driver::BATCH;
use super::{ByTag, CHORES, Job, Nature};
use crate::breaker::Breaker;

/// Calls that are on their way at the same time. While little waits, more would leave less to share; when whole batches
/// wait, there may be more, so that the server always has something to do.
const CALLS: usize = 2;
const FULL_CALLS: usize = 4;
/// Chores beyond which decisions do not wait for all of them any more: they have piled up in an outage.
const FLOOD: usize = 32 * BATCH;

pub(super) struct Lanes {
    lanes: ByTag<Lane>,
    /// Lanes that may have something to send.
    due: VecDeque<u8>,
    chores: usize,
    decisions: usize,
}

#[derive(Default)]
struct Lane {
    chores: VecDeque<Job>,
    decisions: VecDeque<Job>,
    calls: usize,
    is_due: bool,
}

impl Lanes {
    pub(super) fn new(cluster: bool) -> Self {
        Self { lanes: ByTag::new(cluster), due: VecDeque::new(), chores: 0, decisions: 0 }
    }

    /// For a new connection: nothing is on its way.
    pub(super) fn restart(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.calls = 0);
        (0..=u8::MAX).for_each(|tag| self.wake(tag));
    }

    pub(super) fn add(&mut self, job: Job) {
        let tag = job.tag;
        let lane = self.lanes.of_mut(tag);
        match job.nature {
            Nature::Decision | Nature::Trailing => {
                lane.decisions.push_back(job);
                self.decisions += 1;
            }
            Nature::Once | Nature::Repeatable { .. } => {
                lane.chores.push_back(job);
                self.chores += 1;
            }
        }
        self.wake(tag);
    }

    /// Something may have changed for a tag.
    pub(super) fn wake(&mut self, tag: u8) {
        let lane = self.lanes.of_mut(tag);
        let is_empty = lane.chores.is_empty() && lane.decisions.is_empty();
        if !lane.is_due && !is_empty {
            lane.is_due = true;
            self.due.push_back(tag);
        }
    }

    /// A call is over.
    pub(super) fn leave(&mut self, tag: u8) {
        let lane = self.lanes.of_mut(tag);
        lane.calls = lane.calls.saturating_sub(1);
        self.wake(tag);
    }

    /// Jobs that can share a call: of one tag and one moment. Chores first, so that who gives a lease back and then asks
    /// finds its place free; those of a part that is left alone wait.
    ///
    /// While replies get lost or come late, there is one call at a time, so that no other waits behind one that fails.
    pub(super) fn next(&mut self, breakers: &ByTag<Breaker>, is_disturbed: bool) -> Option<Vec<Job>> {
        let is_cluster = self.lanes.len() > 1;
        while let Some(tag) = self.due.pop_front() {
            let lane = self.lanes.of_mut(tag);
            lane.is_due = false;
            let before = (lane.chores.len(), lane.decisions.len());
            let most = match before.0 + before.1 {
                _ if is_cluster || is_disturbed => 1,
                BATCH.. => FULL_CALLS,
                _ => CALLS,
            };
            if lane.calls >= most {
                continue;
            }
            let jobs = lane.batch(breakers.of(tag).is_open());
            self.chores -= before.0 - lane.chores.len();
            self.decisions -= before.1 - lane.decisions.len();
            if !jobs.is_empty() {
                lane.calls += 1;
                self.wake(tag);
                return Some(jobs);
            }
        }
        None
    }

    /// Some chores that can share a call, where there is one lane only. They are sent whether the server is left alone or not.
    pub(super) fn next_chores(&mut self) -> Vec<Job> {
        let chores = &mut self.lanes.of_mut(0).chores;
        let Some(at) = chores.front().map(|job| job.at) else { return Vec::new() };
        let mut jobs = Vec::with_capacity(chores.len().min(BATCH));
        while jobs.len() < BATCH
            && let Some(chore) = pop_if(chores, |job| job.at == at)
        {
            jobs.push(chore);
        }
        self.chores -= jobs.len();
        jobs
    }

    /// Whether more decisions can be taken from their queue.
    pub(super) fn has_room(&self) -> bool {
        self.decisions < self.lanes.len().max(2) * BATCH
    }

    /// Whether more chores can be. Those of parts that are left alone have to leave room for the others.
    pub(super) fn has_room_for_chores(&self, away: bool) -> bool {
        self.chores < if away { CHORES } else { 2 * CHORES }
    }

    /// All decisions and what waits behind them, to be refused.
    pub(super) fn drain_decisions(&mut self) -> Vec<Job> {
        self.decisions = 0;
        self.lanes.iter_mut().flat_map(|lane| lane.decisions.drain(..)).collect()
    }
}

impl Lane {
    fn batch(&mut self, is_open: bool) -> Vec<Job> {
        // Those whose callers have gone away are let go: they have not been charged.
        let is_gone = |job: &Job| {
            job.nature == Nature::Decision && job.reply.as_ref().is_none_or(|reply| reply.is_closed())
        };
        while pop_if(&mut self.decisions, is_gone).is_some() {}
        let most = match self.chores.len() {
            _ if is_open => 0,
            FLOOD.. if !self.decisions.is_empty() => BATCH / 2,
            _ => BATCH,
        };
        let first = if most > 0 { self.chores.front() } else { None }.or_else(|| self.decisions.front());
        let Some(at) = first.map(|job| job.at) else { return Vec::new() };
        let mut jobs = Vec::with_capacity((self.chores.len().min(most) + self.decisions.len()).min(BATCH));
        let is_of_then = |job: &Job| job.at == at;
        while jobs.len() < most
            && let Some(chore) = pop_if(&mut self.chores, is_of_then)
        {
            jobs.push(chore);
        }
        while jobs.len() < BATCH
            && let Some(job) = pop_if(&mut self.decisions, is_of_then)
        {
            if !is_gone(&job) {
                jobs.push(job);
            }
        }
        jobs
    }
}

fn pop_if(jobs: &mut VecDeque<Job>, is_wanted: impl FnOnce(&Job) -> bool) -> Option<Job> {
    if jobs.front().is_some_and(is_wanted) { jobs.pop_front() } else { None }
}
