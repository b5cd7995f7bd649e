//! The check list: what must be reached, whether it was, and by how much.

use tollgate_bench::figures::{median, range};
use tollgate_bench::markdown::{answer, header, row};

use crate::contenders::{GCRA, IN_TURN, OURS, PIPELINED, Question};
use crate::plan::{Mode, Results, Sample};

const CPU_OF_THREE: f64 = 0.7;
const CPU_OF_THREE_AIM: f64 = 0.55;
const THROUGHPUT: f64 = 1.5;
const LATENCY: f64 = 1.15;

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure of ours over the same figure of a peer.
struct Check {
    what: String,
    bound: Bound,
    question: Question,
    peer: &'static str,
    mode: Mode,
    figure: fn(&Sample) -> f64,
}

impl Check {
    fn row(&self, results: &Results) -> String {
        let ratios = self.ratios(results);
        let (least, most) = range(&ratios);
        let ratio = median(ratios);
        let reached = match self.bound {
            Bound::AtLeast(bound) => ratio >= bound,
            Bound::AtMost(bound) => ratio <= bound,
        };
        row(&self.what, &[format!("{ratio:.2}x ({least:.2} to {most:.2})"), answer(reached)])
    }

    /// Of each round, so that what disturbs a whole round disturbs no ratio.
    fn ratios(&self, results: &Results) -> Vec<f64> {
        let samples = |name| results.row(name, self.question).samples(self.mode).iter().map(self.figure);
        samples(OURS).zip(samples(self.peer)).map(|(ours, theirs)| ours / theirs).collect()
    }
}

/// One row per check.
pub fn table(results: &Results) -> String {
    let mut out = String::from(
        "Ratios are of ours over the peer, within one round: the median of all rounds, in brackets the least and the \
         most.\n\n",
    );
    out += &header(&["measured".to_owned(), "met".to_owned()]);
    for check in checks() {
        out += &check.row(results);
    }
    out + &refused_writes_nothing(results)
}

fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for peer in [IN_TURN, PIPELINED] {
        checks.extend(Mode::ALL.map(|mode| Check {
            what: format!(
                "Redis CPU of two rates and a lease, {}: at most {CPU_OF_THREE}x {peer} (aim: {CPU_OF_THREE_AIM}x)",
                mode.label()
            ),
            bound: Bound::AtMost(CPU_OF_THREE),
            question: Question::ThreeLimitsAdmit,
            peer,
            mode,
            figure: |sample| sample.server_cpu,
        }));
    }
    checks.push(Check {
        what: format!("decisions per second of one limit, loaded: at least {THROUGHPUT}x {GCRA}"),
        bound: Bound::AtLeast(THROUGHPUT),
        question: Question::OneLimitAdmits,
        peer: GCRA,
        mode: Mode::Loaded,
        figure: |sample| sample.per_second,
    });
    checks.push(Check {
        what: format!("p50 of one limit, idle: at most {LATENCY}x {GCRA}"),
        bound: Bound::AtMost(LATENCY),
        question: Question::OneLimitAdmits,
        peer: GCRA,
        mode: Mode::Idle,
        figure: |sample| sample.p50,
    });
    checks
}

fn refused_writes_nothing(results: &Results) -> String {
    let ours = results.row(OURS, Question::OneLimitRefuses);
    let samples = || Mode::ALL.into_iter().flat_map(|mode| ours.samples(mode));
    let decisions: f64 = samples().map(|sample| sample.decisions).sum();
    let changes: f64 = samples().map(|sample| sample.changes * sample.decisions).sum();
    let measured = format!("{changes:.0} changes in {decisions:.0} refused decisions");
    row("a refused request writes nothing", &[measured, answer(changes == 0.0)])
}
