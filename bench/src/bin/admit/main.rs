//! What a policy costs: the whole of `Limiter::admit` beside the bare limiters that it uses.

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tollgate::core::store::Charge;
use tollgate::{
    ConcurrencyLimiter, Facts, FleetShedder, Limit, Limiter, MemoryStore, Nanos, Priority, RateLimiter,
    WorkerShedder,
};
use tollgate_bench::{machine, markdown};

/// The four limiters of a public API.
const DEMO: &str = "
identify: { caller: [header: x-api-key, ip], plan: [table], table: { caller-1: pro } }
trusted_proxies: []
plans:
  free: { rate: 10000000/s }
  pro: { rate: 20000000/s }
classes:
  critical: [POST /v1/charges]
  test: [header x-api-key: sk_test_*]
  post: [POST *]
  get: [GET *]
limiters:
  request-rate: { rate: plan }
  concurrent-requests: { concurrency: 1000 }
  fleet-usage: { fleet: 100000, reserve: 20% }
  worker-utilization: { workers: {} }
";

/// A contender: how long so many of its calls take.
struct Contender {
    name: String,
    run: Box<dyn FnMut(usize)>,
    best: Vec<f64>,
}

fn contender(name: impl Into<String>, run: impl FnMut(usize) + 'static) -> Contender {
    Contender { name: name.into(), run: Box::new(run), best: Vec::new() }
}

/// Asks a policy for callers in turn.
fn admits(name: impl Into<String>, policy: &str, callers: usize) -> Contender {
    let limiter = Limiter::from_policy(policy).unwrap_or_else(|error| panic!("{error}"));
    let keys: Vec<String> = (0..callers).map(|number| format!("caller-{number}")).collect();
    let mut next = 0;
    contender(name, move |count| {
        for _ in 0..count {
            next = (next + 7919) % keys.len();
            let headers = [("accept", "*/*"), ("x-api-key", keys[next].as_str()), ("user-agent", "bench")];
            let facts = Facts { method: "GET", path: "/v1/users/42", headers: &headers, ..Facts::default() };
            drop(black_box(limiter.admit_now(black_box(&facts))));
        }
    })
}

/// The four limiters by themselves.
fn bare(callers: usize) -> Contender {
    let rate = RateLimiter::per_second(10_000_000).build();
    let places = ConcurrencyLimiter::new(1000);
    let fleet = FleetShedder::new(100_000, 20).expect("a fleet");
    let worker = WorkerShedder::builder(["test", "get", "post"]).build().expect("a worker");
    let class = worker.class("get").expect("a class");
    let keys: Vec<String> = (0..callers).map(|number| format!("caller-{number}")).collect();
    let mut next = 0;
    contender("the four limiters by themselves, one after the other", move |count| {
        for _ in 0..count {
            next = (next + 7919) % keys.len();
            let key = keys[next].as_str();
            let passed =
                (worker.admit(class), rate.check(key), places.acquire(key), fleet.admit(Priority::Other));
            drop(black_box(passed));
        }
    })
}

/// The store alone, with what ten rates of a policy come to.
fn ten_charges(callers: usize) -> Contender {
    let store = MemoryStore::new();
    let limit = |number: u64| {
        Limit::token_bucket(10_000_000 + number, 10_000_000, Nanos::from_secs(1)).expect("a limit")
    };
    let rules: Vec<_> =
        (0..10).map(|number| store.define(&format!("rate-{number}"), limit(number))).collect();
    let keys: Vec<String> = (0..callers).map(|number| format!("caller-{number}")).collect();
    let mut next = 0;
    contender("the store alone, 10 rates in one call", move |count| {
        for _ in 0..count {
            next = (next + 7919) % keys.len();
            let key = keys[next].as_str().into();
            let charges: [Charge<'_>; 10] =
                std::array::from_fn(|number| Charge { rule: rules[number], key, ask: 1.into() });
            let _ = black_box(store.decide_all(black_box(&charges), None));
        }
    })
}

/// So many rates, each for all requests.
fn many(limiters: usize) -> String {
    let mut policy = "identify: { caller: [header: x-api-key] }\nlimiters:\n".to_owned();
    for number in 0..limiters {
        let _ = writeln!(
            policy,
            "  rate-{number}: {{ rate: 10000000/s, burst: {}, match: [GET /v1/*] }}",
            10_000_000 + number
        );
    }
    policy
}

/// The demo policy with more plans, callers in its table, and overrides.
fn wide(plans: usize, overrides: usize) -> String {
    let mut policy = DEMO.replace(
        "plans:\n",
        &format!(
            "overrides: {{ {} }}\nplans:\n",
            list(overrides, |n| format!("o-{n}: {{ concurrency-x: 1 }}"))
        ),
    );
    policy = policy.replace("concurrency-x", "concurrent-requests");
    let more = list(plans, |n| format!("plan-{n}: {{ rate: 1000000/s, burst: {} }}", 1_000_000 + n));
    let more = more.replace("}, ", "}\n  ");
    policy.replace("  pro: { rate", &format!("  {more}\n  pro: {{ rate"))
}

fn list(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(", ")
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    // The part of a name behind `--only`.
    let only = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1));
    let (rounds, calls) = if quick { (5, 20_000) } else { (15, 200_000) };
    const CALLERS: usize = 10_000;
    let mut contenders = vec![
        bare(CALLERS),
        admits("admit, the same four by a policy", DEMO, CALLERS),
        admits("admit, 1 caller", DEMO, 1),
        admits("admit, 1,000,000 callers", DEMO, 1_000_000),
        admits("admit, 1 plan and 1 override more", &wide(1, 1), CALLERS),
        admits("admit, 1,000 plans more", &wide(1000, 1), CALLERS),
        admits("admit, 10,000 overrides", &wide(1, 10_000), CALLERS),
        admits("admit, 1 rate", &many(1), CALLERS),
        ten_charges(CALLERS),
        admits("admit, 10 rates", &many(10), CALLERS),
        admits(
            "admit, refused",
            "identify: { caller: [header: x-api-key] }\nlimiters: { rate: { rate: 1/d } }",
            CALLERS,
        ),
        admits(
            "admit, one rate and a dark one",
            "limiters: { a: { rate: 10000000/s, per: global }, b: { rate: 9000000/s, per: global, mode: dark } }",
            CALLERS,
        ),
    ];
    contenders.retain(|contender| only.is_none_or(|only| contender.name.contains(only)));
    for contender in &mut contenders {
        (contender.run)(5 * calls);
    }
    for _ in 0..rounds {
        for contender in &mut contenders {
            let begun = Instant::now();
            (contender.run)(calls);
            contender.best.push(begun.elapsed().as_nanos() as f64 / calls as f64);
        }
    }
    let mut report = format!(
        "# What a policy costs\n\n{}\n\
         Medians of {rounds} interleaved rounds of {calls} calls on one thread, in nanoseconds. Each call builds its `Facts`, is\n\
         decided, and drops its permit. All states are in memory; the clock is the system's.\n\n",
        machine::describe("cargo run --release --manifest-path bench/Cargo.toml --bin admit", "none"),
    );
    report += &markdown::header(&["ns per request", "from", "to"].map(str::to_owned));
    for contender in &mut contenders {
        contender.best.sort_by(f64::total_cmp);
        let at = |part: usize| format!("{:.0}", contender.best[(contender.best.len() - 1) * part / 4]);
        report += &markdown::row(&contender.name, &[at(2), at(0), at(4)]);
    }
    print!("{report}");
    if !quick && only.is_none() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks-admit.md");
        if let Err(error) = std::fs::write(docs, &report) {
            eprintln!("docs/benchmarks-admit.md was not written: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
