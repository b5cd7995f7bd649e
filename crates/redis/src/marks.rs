//! Whether the store has forgotten what it knew. A mark in it is a window of a day that the first call opens: if another
//! takes its place before it is over, it was lost, and all that was there with it.

use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::limit::Ask;
use tollgate_core::{Nanos, Timestamp};

use crate::keys::{Names, Subject};
use crate::limits::Parameters;
use crate::store::Known;
use crate::wire::{Act, Message, Reply};

const LASTS: Duration = Duration::from_secs(86_400);

/// A server whose clock went back by up to this waits for itself, and its windows seem to end earlier.
const STEP: Nanos = Nanos::from_secs(60);

/// Marks that are looked at in one beat in a cluster. Each of 256 tags has one, so that every server has some.
const AT_ONCE: u8 = 16;

#[derive(Debug)]
pub(crate) struct Marks {
    rule: Known,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    beat: u64,
    /// By tag, when the mark ends, and the last beat in which it was seen.
    marks: [Option<(Timestamp, u64)>; 256],
    /// The beat in which one was last found lost. What was seen before that may be lost as well, and is not told again.
    lost: u64,
}

impl Default for Marks {
    fn default() -> Self {
        let rule = Known::new("tollgate mark", Parameters::window(LASTS));
        Self { rule, seen: Mutex::new(Seen { beat: 0, marks: [None; 256], lost: 0 }) }
    }
}

impl Marks {
    /// The tags to look at in the next beat.
    pub(crate) fn next_tags(&self, is_cluster: bool) -> impl Iterator<Item = u8> + use<> {
        let mut seen = self.seen.lock();
        seen.beat += 1;
        let first = if is_cluster { (seen.beat % u64::from(AT_ONCE)) as u8 } else { 0 };
        let step = if is_cluster { usize::from(AT_ONCE) } else { 256 };
        (first..=u8::MAX).step_by(step)
    }

    /// Makes the mark of a tag, or tells of the one that is there; or takes it away.
    pub(crate) fn message(&self, names: &Names, tag: u8, act: Act) -> Message {
        self.rule.message(names, Subject::with_tag(tag), act, Ask::from(1))
    }

    /// All tags whose marks were seen.
    pub(crate) fn tags(&self) -> Vec<u8> {
        let seen = self.seen.lock();
        (0..=u8::MAX).zip(&seen.marks).filter_map(|(tag, mark)| mark.map(|_| tag)).collect()
    }

    /// Takes note of a mark. Whether it shows that something was lost that nobody knew of yet.
    pub(crate) fn heard(&self, tag: u8, reply: &Reply) -> bool {
        let Some(outcome) = reply.outcomes().next() else { return false };
        let ends = reply.now + outcome.reset_after;
        let mut seen = self.seen.lock();
        let (beat, lost) = (seen.beat, seen.lost);
        let Some(mark) = seen.marks.get_mut(usize::from(tag)) else { return false };
        let before = mark.replace((ends, beat));
        let Some((end, when)) = before else { return false };
        if ends < end && end < ends + STEP {
            *mark = Some((end, beat));
        }
        let is_news = ends > end && reply.now < end && when >= lost;
        if is_news {
            seen.lost = beat;
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a window that began then, so many seconds after an epoch.
    fn told(marks: &Marks, tag: u8, began: u64, now: u64) -> bool {
        let reset = (began + LASTS.as_secs() - now) * 1_000_000;
        let numbers = [now * 1_000_000, 1, 0, 0, reset, 0];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| (*number as f64).to_le_bytes()).collect();
        marks.heard(tag, &Reply::read(&bytes).unwrap())
    }

    #[test]
    fn a_mark_that_is_replaced_before_it_is_over_was_lost() {
        let marks = Marks::default();
        let beat = || assert_eq!(marks.next_tags(false).collect::<Vec<_>>(), [0]);
        beat();
        assert!(!told(&marks, 0, 1000, 1000), "the first time it is new to everybody");
        beat();
        assert!(!told(&marks, 0, 1000, 50_000));
        beat();
        assert!(told(&marks, 0, 60_000, 60_000));
        beat();
        assert!(told(&marks, 0, 60_005, 60_005), "and again");
        beat();
        assert!(!told(&marks, 0, 60_005 + 86_400, 60_005 + 86_400), "it was over");
        beat();
        assert!(!told(&marks, 0, 60_000 + 86_400, 146_410), "the server's clock waits");
        beat();
        assert!(!told(&marks, 0, 60_005 + 86_400, 146_415), "no longer");
        beat();
        assert!(!told(&marks, 0, 60_005, 60_010), "its clock went back for good");
        beat();
        assert!(told(&marks, 0, 60_020, 60_020));
    }

    #[test]
    fn what_was_lost_at_once_is_told_once_and_every_tag_is_looked_at() {
        let marks = Marks::default();
        let mut looked = [0; 256];
        let mut round = |now| {
            let mut lost = 0;
            for beat in 0..16 {
                for tag in marks.next_tags(true) {
                    looked[usize::from(tag)] += 1;
                    lost += u64::from(told(&marks, tag, now, now + beat));
                }
            }
            lost
        };
        assert_eq!([round(1000), round(1000), round(2000), round(2000), round(3000)], [0, 0, 1, 0, 1]);
        assert_eq!(looked, [5; 256]);
    }
}
