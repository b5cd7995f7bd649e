//! The check list: what must be reached, whether it was, and by how much.

use crate::contenders::{Entry, Form, Limit, Role, governor};
use crate::markdown::{header, row};
use crate::plan::{Results, Scenario, Settings, Summary, THREADS};

/// Refused decisions may measure this much slower than admitted ones: noise.
const NO_SLOWER: f64 = 1.05;
const BYTES_PER_KEY: f64 = 26.0;

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Which of the repetitions counts.
type Pick = fn(Summary) -> f64;

/// A figure of one of our rows, if it was measured.
type Figure<'a> = Box<dyn Fn(&Entry, Pick) -> Option<f64> + 'a>;

struct Check<'a> {
    what: String,
    bound: Bound,
    unit: &'static str,
    figure: Figure<'a>,
}

impl Check<'_> {
    fn verdict(&self, ours: &Entry) -> String {
        let median = (self.figure)(ours, |time| time.median);
        let best = (self.figure)(ours, |time| time.best);
        let (Some(median), Some(best)) = (median, best) else {
            return "not measured".to_owned();
        };
        let reached = match self.bound {
            Bound::AtLeast(least) => median >= least,
            Bound::AtMost(most) => median <= most,
        };
        let answer = if reached { "yes" } else { "**no**" };
        format!("{answer}, {median:.2}{} ({best:.2})", self.unit)
    }
}

/// One row per check, one column per way of calling ours.
pub fn table(settings: &Settings, entries: &[Entry], results: &Results) -> String {
    let ours: Vec<&Entry> = entries.iter().filter(|e| e.role == Role::Ours).collect();
    if ours.is_empty() {
        return "Ours is not in this run.\n".to_owned();
    }
    let names: Vec<String> = ours.iter().map(|entry| entry.name.to_owned()).collect();
    let mut out = header(&names);
    for check in checks(settings, entries, results) {
        let verdicts: Vec<String> = ours.iter().map(|entry| check.verdict(entry)).collect();
        out += &row(&check.what, &verdicts);
    }
    out
}

fn checks<'a>(settings: &Settings, entries: &'a [Entry], results: &'a Results) -> Vec<Check<'a>> {
    let many = settings.many();
    let mut checks = Vec::new();
    for peer in [governor::STRING, governor::INLINE] {
        for peer in entries.iter().filter(|entry| entry.name == peer) {
            checks.extend([
                faster(results, peer, 1, 1, 2.0),
                faster(results, peer, 100_000, 1, 3.0),
                faster(results, peer, many, 1, 5.0),
                faster(results, peer, many, 2, 5.0),
            ]);
        }
    }
    checks.extend([1, 100_000, many].map(|keys| refused(results, keys)));
    checks.push(memory(results, many));
    checks
}

fn scenario(keys: usize, limit: Limit) -> Scenario {
    let form = Form::Text;
    Scenario { form, keys, limit }
}

/// With the generator's time on both sides.
fn faster<'a>(results: &'a Results, peer: &'a Entry, keys: usize, threads: usize, least: f64) -> Check<'a> {
    let scenario = scenario(keys, Limit::Admit);
    let on_threads = if threads == 1 { "" } else { ", 2 threads" };
    Check {
        what: format!("{}{on_threads}: at least {least:.0}x {}, default hasher", scenario.label(), peer.name),
        bound: Bound::AtLeast(least),
        unit: "x",
        figure: Box::new(move |ours, pick| {
            let theirs = pick(results.gross(peer, scenario, threads)?);
            Some(theirs / pick(results.gross(ours, scenario, threads)?))
        }),
    }
}

fn refused(results: &Results, keys: usize) -> Check<'_> {
    let (admit, refuse) = (scenario(keys, Limit::Admit), scenario(keys, Limit::Refuse));
    Check {
        what: format!(
            "{}: no slower than admitted (up to {NO_SLOWER}x, worse of 1 and 2 threads)",
            refuse.label()
        ),
        bound: Bound::AtMost(NO_SLOWER),
        unit: "x",
        figure: Box::new(move |ours, pick| {
            let time = |scenario, threads| Some(pick(results.time(ours, scenario, threads)?));
            let ratio = |&threads| Some(time(refuse, threads)? / time(admit, threads)?);
            let ratios: Option<Vec<f64>> = THREADS.iter().map(ratio).collect();
            ratios?.into_iter().max_by(f64::total_cmp)
        }),
    }
}

fn memory(results: &Results, keys: usize) -> Check<'_> {
    let full = scenario(keys, Limit::Admit);
    Check {
        what: format!("{}: at most {BYTES_PER_KEY:.0} bytes per key", full.label()),
        bound: Bound::AtMost(BYTES_PER_KEY),
        unit: " bytes",
        figure: Box::new(move |ours, _| results.bytes_per_key(ours, full)),
    }
}
