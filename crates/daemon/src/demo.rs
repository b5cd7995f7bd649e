//! The four limiters at work in a terminal: real decisions, on a clock that the demonstration moves itself.

use std::io::{self, Write};
use std::time::Duration;

use tollgate::{
    Class, Clock, ConcurrencyLimiter, FleetShedder, LimitError, ManualClock, Priority, RateLimiter,
    Timestamp, WorkerSettings, WorkerShedder,
};

/// The lines of one limiter's part.
type Scene = Result<Vec<String>, LimitError>;

/// Shows all four on standard output.
pub fn run() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines()? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// What is shown, line by line.
pub fn lines() -> Scene {
    let opening = [
        "Tollgate: may this request pass? Four limiters answer.",
        "The decisions are real, by the code that serves requests; only the clock is simulated.",
    ];
    let closing = [
        "",
        "Where to go next",
        "   tollgate conformance DIR   replays test vectors through the same code",
        "   tollgate --help            lists every command",
        "   the crate `tollgate`       brings all four into a Rust service",
    ];
    let scenes = [request_rate()?, concurrent_requests()?, fleet_usage()?, worker_utilization()?];
    let opening = opening.into_iter().map(str::to_owned);
    let closing = closing.into_iter().map(str::to_owned);
    Ok(opening.chain(scenes.into_iter().flatten()).chain(closing).collect())
}

/// A burst, a refusal that says how long to wait, and a caller that waits exactly that long.
fn request_rate() -> Scene {
    let mut lines = heading("1. Request rate: 5 a second, bursts of up to 10");
    let clock = ManualClock::default();
    let limiter = RateLimiter::per_second(5).burst(10).clock(clock.clone()).try_build()?;
    let time = || format!("{:4.1} s", clock.now().as_nanos() as f64 / 1e9);
    for request in 1..=14 {
        let time = time();
        let answer = match limiter.check("alice") {
            Ok(outcome) => format!("passes, {} left", outcome.remaining),
            Err(refused) => {
                let wait = refused.retry_after().unwrap_or_default();
                clock.advance(wait);
                format!("is refused: retry after {wait:?}")
            }
        };
        lines.push(format!("   {time}  request {request:2} {answer}"));
    }
    clock.advance(Duration::from_secs(6));
    if let Ok(outcome) = limiter.peek("alice", 1) {
        let left = outcome.remaining;
        lines.push(format!("   {}  after a pause of 6 s there are {left} again", time()));
    }
    Ok(lines)
}

/// Places that are taken, refused, and come back when their holders end.
fn concurrent_requests() -> Scene {
    let mut lines = heading("2. Concurrent requests: 3 at once");
    let limiter = ConcurrencyLimiter::builder(3).try_build()?;
    let mut say = |what: &str| {
        lines.push(format!("   {what}, {} in progress", limiter.in_progress("alice")));
    };
    let mut held = Vec::new();
    for request in 1..=4 {
        let permit = limiter.acquire("alice");
        let verdict = if permit.is_ok() { "begins" } else { "is refused" };
        held.extend(permit);
        say(&format!("request {request} {verdict}"));
    }
    drop(held.pop());
    say("one ends and drops its permit");
    let permit = limiter.acquire("alice");
    let verdict = if permit.is_ok() { "begins" } else { "is refused" };
    held.extend(permit);
    say(&format!("request 4 tries again and {verdict}"));
    drop(held);
    say("all end");
    Ok(lines)
}

/// Ordinary requests use up their share; critical ones still pass.
fn fleet_usage() -> Scene {
    let mut lines = heading("3. Fleet usage: 10 places, 20 % of them for critical requests only");
    let fleet = FleetShedder::new(10, 20)?;
    let mut held: Vec<_> = (0..12).flat_map(|_| fleet.admit(Priority::Other)).collect();
    let (begin, shed) = (held.len(), 12 - held.len());
    lines.push(format!("   12 ordinary requests arrive: {begin} begin, {shed} are shed"));
    for _ in 0..2 {
        let permit = fleet.admit(Priority::Critical);
        let verdict = if permit.is_ok() { "begins" } else { "is shed" };
        held.extend(permit);
        let used = fleet.in_progress();
        let used = used.critical + used.other;
        lines.push(format!("   a critical request {verdict}, {used} in progress"));
    }
    Ok(lines)
}

/// Overload sheds class after class, and a box that recovers takes them back in reverse.
fn worker_utilization() -> Scene {
    let settings = WorkerSettings::default();
    let WorkerSettings { grace, full, .. } = settings;
    let title = format!("4. Worker utilization: sheds after {grace} of overload, slowly, over {full}");
    let mut lines = heading(&title);
    lines.push("     time    busy   shed:   test    GET   POST  critical".to_owned());
    let shedder = WorkerShedder::builder(["test", "get", "post"]).settings(settings).build()?;
    for second in 0..=320 {
        let busy_ppm = if second <= 160 { 1_000_000 } else { 150_000 };
        shedder.record_ppm(busy_ppm, Some(Timestamp::from_secs(second)));
        if second % 20 != 0 {
            continue;
        }
        // A thousand requests of each class, with draws spread evenly over all there are.
        let shed = |class| {
            let draws = (0..1000).map(|request| request * (u32::MAX / 1000));
            draws.filter(|&draw| shedder.admit_with(class, draw).is_err()).count() / 10
        };
        let [test, get, post] = [0, 1, 2].map(|rank| shed(Class(rank)));
        let critical = shed(Class::CRITICAL);
        let busy = busy_ppm / 10_000;
        lines.push(format!(
            "   {second:4} s  {busy:3} %          {test:3} %  {get:3} %  {post:3} %     {critical:3} %"
        ));
    }
    Ok(lines)
}

fn heading(title: &str) -> Vec<String> {
    vec![String::new(), title.to_owned()]
}
