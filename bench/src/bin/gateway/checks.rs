//! The check list: what must be reached, whether it was, and by how much.

use tollgate_bench::figures::{median, range};
use tollgate_bench::markdown::{answer, header, row};

use crate::contenders::{ENVOY, HAPROXY, HAPROXY_REFUSING, NGINX, NGINX_REFUSING, OURS, OURS_REFUSING};
use crate::plan::{Results, Sample};
use crate::server::Cpu;

enum Bound {
    AtLeast(f64),
    Below(f64),
    /// For information.
    None,
}

impl Bound {
    fn is_met(&self, figure: f64) -> String {
        match self {
            Self::AtLeast(bound) => answer(figure >= *bound),
            Self::Below(bound) => answer(figure < *bound),
            Self::None => String::new(),
        }
    }
}

type Figure = fn(&Sample) -> Option<f64>;

/// A figure of one over the same figure of another, or over another.
struct Check {
    what: &'static str,
    one: &'static str,
    other: &'static str,
    figure: Figure,
    over: Figure,
    bound: Bound,
}

pub fn per_second(sample: &Sample) -> Option<f64> {
    Some(sample.load.per_second)
}

pub fn cpu(sample: &Sample) -> Option<f64> {
    sample.cpu.map(Cpu::all)
}

/// What the kernel does of it, which receives and sends.
pub fn kernel(sample: &Sample) -> Option<f64> {
    Some(sample.cpu?.system)
}

/// With what the server behind it spends.
fn cpu_of_all(sample: &Sample) -> Option<f64> {
    Some(sample.cpu?.all() + sample.server_cpu.all())
}

const CHECKS: [Check; 10] = [
    Check {
        what: "requests per second over nginx's: at least 0.7 (aim: 1)",
        one: OURS,
        other: NGINX,
        figure: per_second,
        over: per_second,
        bound: Bound::AtLeast(0.7),
    },
    Check {
        what: "requests per second over Envoy's: at least 2",
        one: OURS,
        other: ENVOY,
        figure: per_second,
        over: per_second,
        bound: Bound::AtLeast(2.0),
    },
    Check {
        what: "requests per second over HAProxy's",
        one: OURS,
        other: HAPROXY,
        figure: per_second,
        over: per_second,
        bound: Bound::None,
    },
    Check { what: "CPU over nginx's", one: OURS, other: NGINX, figure: cpu, over: cpu, bound: Bound::None },
    Check { what: "CPU over Envoy's", one: OURS, other: ENVOY, figure: cpu, over: cpu, bound: Bound::None },
    Check {
        what: "CPU of a refused request over a forwarded one, with that of the server, which it saves: below 1/3",
        one: OURS_REFUSING,
        other: OURS,
        figure: cpu_of_all,
        over: cpu_of_all,
        bound: Bound::Below(1.0 / 3.0),
    },
    Check {
        what: "the same of the gateway alone",
        one: OURS_REFUSING,
        other: OURS,
        figure: cpu,
        over: cpu,
        bound: Bound::None,
    },
    Check {
        what: "the same of HAProxy alone",
        one: HAPROXY_REFUSING,
        other: HAPROXY,
        figure: cpu,
        over: cpu,
        bound: Bound::None,
    },
    Check {
        what: "the same of nginx alone",
        one: NGINX_REFUSING,
        other: NGINX,
        figure: cpu,
        over: cpu,
        bound: Bound::None,
    },
    Check {
        what: "what the kernel alone does for a refused request, over all that is done for a forwarded one",
        one: OURS_REFUSING,
        other: OURS,
        figure: kernel,
        over: cpu,
        bound: Bound::None,
    },
];

impl Check {
    fn row(&self, results: &Results) -> String {
        let ratios = self.ratios(results);
        let (least, most) = range(&ratios);
        let ratio = median(ratios);
        row(self.what, &[format!("{ratio:.2}x ({least:.2} to {most:.2})"), self.bound.is_met(ratio)])
    }

    /// Of each round, so that what disturbs a whole round disturbs no ratio.
    fn ratios(&self, results: &Results) -> Vec<f64> {
        let ones = results.row(self.one).figures(self.figure);
        let others = results.row(self.other).figures(self.over);
        ones.into_iter().zip(others).map(|(one, other)| one / other).collect()
    }
}

/// One row per check.
pub fn table(results: &Results) -> String {
    let mut out = String::from(
        "Ratios within one round: the median of all rounds, in brackets the least and the most. What the limiters cost: the \
         median of all pairs, in brackets the least and the most of the medians of processes. Where nothing has to be reached the last \
         column is empty.\n\n",
    );
    out += &header(&["measured".to_owned(), "met".to_owned()]);
    for check in CHECKS {
        out += &check.row(results);
    }
    out += &cost(
        "what the four limiters cost, CPU over that without them: below 1.08 (aim: 1.05)",
        &results.cost.cpu,
        &Bound::Below(1.08),
    );
    out += &cost(
        "the same, requests per second over those without them: at least 0.92 (aim: 0.95)",
        &results.cost.per_second,
        &Bound::AtLeast(0.92),
    );
    out + &all_answered(results)
}

fn cost(what: &str, ratios: &[Vec<f64>], bound: &Bound) -> String {
    let (from, to) = range(&ratios.iter().cloned().map(median).collect::<Vec<_>>());
    let ratio = median(ratios.concat());
    row(what, &[format!("{ratio:.3}x ({from:.3} to {to:.3})"), bound.is_met(ratio)])
}

fn all_answered(results: &Results) -> String {
    let samples = || results.rows.iter().flat_map(|row| &row.samples);
    let errors: f64 = samples().map(|sample| sample.errors).sum();
    let requests: f64 = samples().map(|sample| sample.load.requests).sum();
    let measured = format!("{errors:.0} of {requests:.0} were not");
    row("every request was answered as it should be", &[measured, answer(errors == 0.0)])
}
