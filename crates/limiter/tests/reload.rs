//! Policies that change while requests are in progress (I14), and files of every kind (F 57).

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::folder::Folder;
use tollgate::{
    Facts, Limiter, LimiterBuilder, ManualClock, MemoryStore, Permit, Policy, PolicyFile, Timestamp,
};

/// Time stands still. The store is told so, too: it reads its own clock when a permit is dropped.
fn builder() -> LimiterBuilder {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    Limiter::builder().store(store).clock(clock)
}

fn limiter(policy: &str) -> Limiter {
    builder().policy(policy).build().unwrap()
}

fn admit(limiter: &Limiter) -> Option<Permit> {
    limiter.admit_now(&Facts::default()).ok()
}

/// How many of so many requests pass, each after the other.
fn passes(limiter: &Limiter, of: usize) -> usize {
    (0..of).filter(|_| admit(limiter).is_some()).count()
}

/// Policies of one limiter that admits ten, by every algorithm.
fn tens() -> Vec<String> {
    let algorithms = [
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "anchored-window",
        "sliding-window",
        "sliding-log",
        "sub-windows",
        "interval-bucket",
    ];
    let of = |algorithm: &str| format!("{{ rate: 10/h, algorithm: {algorithm}, per: global }}");
    algorithms.iter().map(|algorithm| of(algorithm)).collect()
}

#[test]
fn limits_that_do_not_change_keep_their_balances_over_a_hundred_reloads() {
    let folder = Folder::new();
    for of in tens() {
        let path = folder.write("policy.yaml", format!("limiters:\n  it: {of}\n"));
        let limiter = builder().policy_file(&path).build().unwrap();
        assert_eq!(passes(&limiter, 5), 5, "{of}");
        for reload in 0..100 {
            // Everything around it changes, also its place.
            let other = format!("  other: {{ rate: {}/s, per: global }}\n", 1000 + reload);
            let (before, after) = if reload % 2 == 0 { (&*other, "") } else { ("", &*other) };
            folder.write("policy.yaml", format!("# {reload}\nlimiters:\n{before}  it: {of}\n{after}"));
            limiter.reload_file(&path).unwrap();
        }
        assert_eq!(passes(&limiter, 20), 5, "{of}");
        assert_eq!(limiter.report().reloads.succeeded, 100);
        let it = limiter.report().limiters.into_iter().find(|known| *known.name == *"it").unwrap().stats;
        assert_eq!((it.asked, it.refused), (25, 15), "counts go on, too");
    }
}

#[test]
fn requests_in_progress_are_counted_over_reloads() {
    for (kind, more) in [
        ("concurrency: 4, per: global", "concurrency: 6, per: global"),
        ("fleet: 4, reserve: 0%, for: test", "fleet: 6, reserve: 0%, for: test"),
    ] {
        let of = |kind: &str, note: u32| {
            format!("limiters: {{ o{note}: {{ rate: 99/s, per: global }}, it: {{ {kind} }} }}")
        };
        let limiter = limiter(&of(kind, 0));
        let mut permits: Vec<Permit> = (0..2).map(|_| admit(&limiter).unwrap()).collect();
        for note in 0..100 {
            limiter.reload_text(&of(kind, note)).unwrap();
        }
        permits.extend((0..2).map(|_| admit(&limiter).unwrap()));
        assert!(admit(&limiter).is_none(), "{kind}: two from before, two from now");
        // A larger limit knows of all four; a smaller one, too.
        limiter.reload_text(&of(more, 0)).unwrap();
        permits.extend((0..2).map(|_| admit(&limiter).unwrap()));
        assert!(admit(&limiter).is_none(), "{more}");
        limiter.reload_text(&of(kind, 0)).unwrap();
        assert!(admit(&limiter).is_none(), "{kind}: six are in progress");
        permits.truncate(4);
        assert!(admit(&limiter).is_none(), "{kind}: four are");
        permits.truncate(3);
        assert!(admit(&limiter).is_some(), "{kind}: three are");
        permits.clear();
        let all: Vec<Option<Permit>> = (0..9).map(|_| admit(&limiter)).collect();
        assert_eq!(all.iter().flatten().count(), 4, "{kind}: each was given back once");
        drop(all);
        assert_eq!(limiter.report().in_flight, 0);
    }
}

#[test]
fn of_limits_that_change_what_was_used_stays_used() {
    for ten in tens() {
        let of = |count: u32| format!("limiters: {{ it: {} }}", ten.replace("10/h", &format!("{count}/h")));
        let limiter = limiter(&of(10));
        assert_eq!(passes(&limiter, 6), 6);
        limiter.reload_text(&of(20)).unwrap();
        assert_eq!(passes(&limiter, 10), 10, "{ten}: sixteen of twenty");
        limiter.reload_text(&of(17)).unwrap();
        assert_eq!(passes(&limiter, 10), 1, "{ten}: sixteen of seventeen");
        limiter.reload_text(&of(4)).unwrap();
        assert_eq!(passes(&limiter, 10), 0, "{ten}: more than there is");
    }
}

/// The wait that the next request is told, refused as it has to be.
fn wait(limiter: &Limiter) -> Duration {
    let refused = limiter.admit_now(&Facts::default()).unwrap_err();
    refused.retry_after().unwrap()
}

/// Found by a reader: after a reload had lowered a limit, the wait was too short ten times in a row.
#[test]
fn a_limit_that_a_reload_lowers_tells_true_waits() {
    for ten in tens() {
        let of = |count: u32| format!("limiters: {{ it: {} }}", ten.replace("10/h", &format!("{count}/h")));
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = Limiter::builder().store(store).clock(clock.clone()).policy(&of(100)).build().unwrap();
        assert_eq!(passes(&limiter, 200), 100);
        limiter.reload_text(&of(10)).unwrap();
        clock.advance(Duration::from_secs(30));
        let told = wait(&limiter);
        clock.advance(told - Duration::from_nanos(1));
        assert_eq!(wait(&limiter), Duration::from_nanos(1), "{ten}: as it was told");
        clock.advance(Duration::from_nanos(1));
        assert_eq!(passes(&limiter, 1), 1, "{ten}: after {told:?}");
        if ten.contains("token-bucket") {
            assert_eq!(told, Duration::from_secs(330), "a tenth of an hour after the reload");
        }
    }
}

/// The plans of a limiter, and limits of single callers, are superseded each by its own.
#[test]
fn plans_and_overrides_that_a_reload_lowers_tell_true_waits() {
    let of = |free: u32, pro: u32, own: u32| {
        format!(
            "identify: {{ caller: {{ header: k }}, plan: {{ header: p }} }}\n\
             plans: {{ free: {{ rate: {free}/h }}, pro: {{ rate: {pro}/h }} }}\n\
             limiters: {{ it: {{ rate: plan, per: caller }} }}\n\
             overrides: {{ carol: {{ it: {own}/h }} }}\n"
        )
    };
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let built = Limiter::builder().store(store).clock(clock.clone()).policy(&of(100, 200, 300)).build();
    let limiter = built.unwrap();
    let ask = |caller: &str, plan: &str| {
        let headers = [("k", caller.as_bytes()), ("p", plan.as_bytes())];
        limiter.admit_now(&Facts { headers: &headers, ..Facts::default() })
    };
    let callers = [("alice", "free", 100), ("bob", "pro", 200), ("carol", "free", 300)];
    for (caller, plan, count) in callers {
        assert_eq!((0..400).filter(|_| ask(caller, plan).is_ok()).count(), count);
    }
    // Pro gets what free had. What was used under that ages by it, as long as it is somebody's.
    limiter.reload_text(&of(10, 100, 20)).unwrap();
    clock.advance(Duration::from_secs(1));
    for (caller, plan, wait) in [("alice", "free", 91 * 36 - 1), ("bob", "pro", 35), ("carol", "free", 179)] {
        let told = ask(caller, plan).unwrap_err().retry_after().unwrap();
        assert_eq!(told, Duration::from_secs(wait), "{caller}");
    }
}

/// A key that nobody has seen since a reload is not free again because the old limit would have refilled it.
#[test]
fn a_limit_that_a_reload_slows_down_forgets_nobody() {
    let of = |rate: &str| format!("limiters: {{ it: {{ rate: {rate}, per: global }} }}");
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Limiter::builder().store(store).clock(clock.clone()).policy(&of("100/s")).build().unwrap();
    assert_eq!(passes(&limiter, 200), 100);
    limiter.reload_text(&of("100/h")).unwrap();
    clock.advance(Duration::from_secs(72));
    assert_eq!(passes(&limiter, 10), 2, "two tokens in 72 seconds");
    // There and back: no record is left behind each time, and what was used stays used.
    for _ in 0..100 {
        limiter.reload_text(&of("100/s")).unwrap();
        limiter.reload_text(&of("100/h")).unwrap();
    }
    assert_eq!(passes(&limiter, 10), 0);
}

/// Found by a reader: what was used of a rate was found by its place in the list.
#[test]
fn rates_that_did_not_change_keep_their_balances_wherever_they_stand() {
    let of = |rates: &str| format!("limiters: {{ it: {{ rate: {rates}, per: global }} }}");
    let hour = "{ rate: 100/h, burst: 100 }";
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    for (before, after) in [
        (format!("[10/s, {hour}]"), format!("[{hour}, 10/s]")),
        (format!("[10/s, {hour}]"), hour.to_owned()),
        (format!("[10/s, {hour}]"), format!("[{hour}, 20/s]")),
        (format!("[5/s, 10/s, {hour}]"), format!("[{hour}, 10/s]")),
        (hour.to_owned(), format!("[10/s, {hour}]")),
    ] {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let built = Limiter::builder().store(store).clock(clock.clone()).policy(&of(&before)).build();
        let limiter = built.unwrap();
        let mut used = 0;
        for _ in 0..40 {
            used += passes(&limiter, 5);
            clock.advance(Duration::from_millis(500));
        }
        assert_eq!(used, 100, "{before}");
        limiter.reload_text(&of(&after)).unwrap();
        assert_eq!(passes(&limiter, 20), 0, "{before} to {after}");
    }
}

/// Found by a reader: callers who came from a plan with several rates to one with fewer began anew.
#[test]
fn plans_of_one_rate_and_of_several_share_what_was_used() {
    let policy = "identify: { caller: { header: k }, plan: { header: p } }\n\
                  plans: { free: { rate: 100/h }, pro: { rate: [200/min, 100/h] } }\n\
                  limiters: { it: { rate: plan } }\n";
    for (first, second) in [("free", "pro"), ("pro", "free")] {
        let limiter = limiter(policy);
        let ask = |plan: &str| {
            let headers = [("k", "alice"), ("p", plan)];
            limiter.admit_now(&Facts { headers: &headers, ..Facts::default() }).is_ok()
        };
        assert_eq!((0..150).filter(|_| ask(first)).count(), 100);
        assert!(!ask(second), "from {first} to {second}");
    }
}

/// Found by a reader: the same buckets, written otherwise, were others.
#[test]
fn buckets_are_the_same_however_their_parts_are_written() {
    for (before, after) in [
        ("per: [caller, method]", "per: [method, caller]"),
        ("per: [{ header: a }, { header: b }]", "per: [{ header: b }, { header: a }]"),
        ("per: path, match: [{ path: '/u/{id}' }]", "per: path, match: [{ path: '/u/{name}' }]"),
    ] {
        let of = |per: &str| format!("limiters: {{ it: {{ rate: 10/h, {per} }} }}");
        let limiter = limiter(&of(before));
        let headers = [("a", "1"), ("b", "2")];
        let facts = Facts { method: "GET", path: "/u/7", headers: &headers, ..Facts::default() };
        let passes = || (0..20).filter(|_| limiter.admit_now(&facts).is_ok()).count();
        assert_eq!(passes(), 10, "{before}");
        limiter.reload_text(&of(after)).unwrap();
        assert_eq!(passes(), 0, "{before} to {after}");
    }
}

#[test]
fn a_limiter_that_goes_and_comes_back_knows_what_was_used() {
    for of in tens() {
        let limiter = limiter(&format!("limiters: {{ it: {of} }}"));
        assert_eq!(passes(&limiter, 6), 6);
        limiter.reload_text("limiters: { other: { rate: 1000/s, per: global } }").unwrap();
        assert_eq!(passes(&limiter, 50), 50);
        assert!(!limiter.switch("it", None), "there is none");
        limiter.reload_text(&format!("limiters: {{ it: {of} }}")).unwrap();
        assert_eq!(passes(&limiter, 10), 4, "{of}");
    }
}

/// I14: what a decision says is all of one policy, while others are put to work as fast as can be.
#[test]
fn a_decision_is_by_one_policy() {
    let of = |v: u32| {
        let names: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| format!("{name}{v}")).collect();
        // Each version has them in another order, and another number of them: indices do not mean the same.
        let turned = names.iter().cycle().skip(v as usize).take(2 + v as usize);
        let lines: String =
            turned.map(|name| format!("  {name}: {{ rate: 1000000000/s, per: global }}\n")).collect();
        format!("plans: {{ p{v}: {{}} }}\nclasses: {{ k{v}: [GET /*] }}\nlimiters:\n{lines}")
    };
    let texts = [of(1), of(2)];
    let policies = texts.clone().map(|text| Policy::read(&text).unwrap().0);
    let limiter = limiter(&texts[0]);
    let stop = AtomicBool::new(false);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let decision = admit(&limiter).unwrap().decision();
                    let plan = decision.plan.unwrap();
                    let version: usize = plan[1..].parse().unwrap();
                    assert_eq!(*decision.class, format!("k{version}"));
                    let names: BTreeSet<&str> = decision.standings.iter().map(|one| &*one.name).collect();
                    assert_eq!(names.len(), 2 + version);
                    assert!(names.iter().all(|name| name.ends_with(&version.to_string())), "{names:?}");
                    seen[version - 1].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let enough = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 20_000);
        let mut reloads = 0_u64;
        while reloads < 2_000 || (!enough() && reloads < 2_000_000) {
            limiter.reload(policies[(reloads % 2) as usize].clone()).unwrap();
            reloads += 1;
        }
        stop.store(true, Ordering::Release);
        assert_eq!(limiter.report().reloads.succeeded, reloads);
        assert!(enough(), "{seen:?}");
    });
    assert_eq!(limiter.report().totals.panics, 0);
}

const GOOD: &str = "# A policy of the usual kind.
identify:
  caller: [header: x-api-key, ip]
  plan: table
  table: { sk_paid: paid }
trusted_proxies: []
path_case: sensitive
plans:
  free: { rate: 10/h }
  paid: { rate: 100/h }
limiters:
  request-rate: { rate: plan }
  concurrent: { concurrency: 20 }
  logins:
    rate: [5/min, 20/h]
    algorithm: token-bucket
    match: [POST /login]
";

/// A limiter that has used four of ten, by a file that is then made a bad one.
fn used_four(folder: &Folder) -> Limiter {
    let path = folder.write("policy.yaml", GOOD);
    let limiter = builder().policy_file(path).build().unwrap();
    assert_eq!(passes(&limiter, 4), 4);
    limiter
}

/// The file is refused in these words, and everything is as it was.
fn is_refused(limiter: &Limiter, path: &Path, words: &str) {
    let before = (limiter.policy(), limiter.report());
    let error = limiter.reload_file(path).unwrap_err();
    let said = error.to_string();
    assert!(said.contains(words) && said.contains("policy.yaml"), "{said}");
    let after = limiter.report();
    assert_eq!(limiter.policy(), before.0);
    assert_eq!(after.limiters, before.1.limiters);
    assert_eq!(after.reloads.failed, before.1.reloads.failed + 1);
    assert_eq!(after.reloads.succeeded, before.1.reloads.succeeded);
    assert_eq!(after.reloads.loaded_at, before.1.reloads.loaded_at);
    assert_eq!(after.reloads.error.as_deref(), Some(&*said));

    // A start with the same file is as loud, and open only if that is asked for.
    assert_eq!(Limiter::load(path).unwrap_err().to_string(), said);
    assert_eq!(PolicyFile::read(path).unwrap_err().to_string(), said);
    let (open, wrong) = Limiter::builder().policy_file(path).build_or_open().unwrap();
    assert_eq!(wrong.unwrap().to_string(), said);
    assert_eq!(passes(&open, 100), 100);
    let reloads = open.report().reloads;
    assert_eq!((reloads.failed, reloads.error.as_deref()), (1, Some(&*said)));
}

#[test]
fn bad_files_change_nothing() {
    let folder = Folder::new();
    let limiter = used_four(&folder);
    let path = folder.file("policy.yaml");
    for (text, words) in [
        ("", "this policy is empty"),
        ("\n\n# nothing\n", "this policy is empty"),
        ("---\n", "this policy is empty"),
        ("limiters:", "`limiters` is blank"),
        ("limiters: { a: }", "nothing is here"),
        ("limiters: { a: { rate: } }", "blank"),
        ("limiters: { a: { rat: 5/s } }", "did you mean `rate`?"),
        ("limiters: { a: { rate: 0/s } }", "policy.yaml:1:"),
        ("limits: {}", "policy.yaml:1:1"),
        ("include: policy.yaml\nlimiters: {}", "include"),
        ("a: &a [*a]", "policy.yaml:1:"),
        ("limiters: { a: { rate: 5/s", "this is no YAML"),
        ("{{{{{{{{", "this is no YAML"),
        ("\0\0\0\0", "policy.yaml"),
    ] {
        folder.write("policy.yaml", text);
        is_refused(&limiter, &path, words);
    }
    folder.write("policy.yaml", b"limiters: {}\n# \xff\xfe");
    is_refused(&limiter, &path, "line 2 is not UTF-8 text");
    folder
        .write("policy.yaml", "limiters: {}".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    is_refused(&limiter, &path, "policy.yaml");
    folder.write("policy.yaml", format!("limiters: {{}}\n{}", "# x\n".repeat(1 << 20)));
    is_refused(&limiter, &path, "bytes, and may have up to 4194304");
    std::fs::File::create(&path).unwrap().set_len(50_000_000).unwrap();
    is_refused(&limiter, &path, "it has 50000000 bytes");
    std::fs::remove_file(&path).unwrap();
    is_refused(&limiter, &path, "cannot be read: No such file");
    std::fs::create_dir(&path).unwrap();
    is_refused(&limiter, &path, "it is a folder");
    std::fs::remove_dir(&path).unwrap();
    #[cfg(unix)]
    {
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        is_refused(&limiter, &path, "it is a pipe or a device");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        is_refused(&limiter, &path, "symbolic link");
        std::fs::remove_file(&path).unwrap();
        folder.write("policy.yaml", GOOD);
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o000)).unwrap();
        // Root reads everything.
        if std::fs::File::open(&path).is_err() {
            is_refused(&limiter, &path, "Permission denied");
        }
        std::fs::set_permissions(&path, mode(0o600)).unwrap();
    }
    let failed = limiter.report().reloads.failed;
    assert!(failed >= 19, "{failed}");
    folder.write("policy.yaml", GOOD);
    assert!(limiter.reload_file(&path).unwrap().is_empty());
    let reloads = limiter.report().reloads;
    assert_eq!((reloads.succeeded, reloads.failed, reloads.error), (1, failed, None));
    assert_eq!(passes(&limiter, 10), 6, "and four are still used");
}

/// A file that is cut off anywhere is loaded as it stands, or changes nothing: never a part of it.
#[test]
fn files_that_are_cut_off_are_loaded_whole_or_not_at_all() {
    let folder = Folder::new();
    let limiter = used_four(&folder);
    let path = folder.file("policy.yaml");
    let (mut loaded, mut refused) = (0, 0);
    for end in 0..GOOD.len() {
        let text = &GOOD[..end];
        let before = limiter.policy();
        folder.write("policy.yaml", text);
        match (limiter.reload_file(&path), Policy::read(text)) {
            (Ok(_), Ok((policy, _))) => {
                assert_eq!(limiter.policy(), policy);
                loaded += 1;
            }
            (Err(_), Err(_)) => {
                assert_eq!(limiter.policy(), before);
                refused += 1;
            }
            (loaded, read) => panic!("{end}: {loaded:?}, {read:?}"),
        }
    }
    assert!(loaded > 5 && refused > 200, "{loaded} {refused}");
    folder.write("policy.yaml", GOOD);
    limiter.reload_file(&path).unwrap();
    assert_eq!(passes(&limiter, 10), 6);
}

#[test]
fn a_policy_that_is_unwise_says_so_with_its_place() {
    let folder = Folder::new();
    let path = folder.write("policy.yaml", "identify: { caller: [ip] }\nlimiters: { a: { rate: 5/s } }");
    let file = PolicyFile::read(&path).unwrap();
    assert_eq!((file.warnings().warnings().count(), file.path()), (1, &*path));
    assert!(file.warnings().to_string().contains("policy.yaml:"), "{}", file.warnings());
    let limiter = Limiter::builder().read_file(file).build().unwrap();
    assert_eq!(limiter.reload_file(&path).unwrap().warnings().count(), 1);
}

/// Without the feature, a policy that needs it says which.
#[cfg(not(feature = "jwt"))]
#[test]
fn a_policy_with_tokens_needs_the_feature() {
    let policy = "identify: { caller: [jwt: sub], jwt: { jwks_file: k } }\nlimiters: { a: { rate: 5/s } }";
    let error = Limiter::from_policy(policy).unwrap_err();
    assert!(
        matches!(&error, tollgate::PolicyError::Tokens(why) if why.contains("the feature `jwt`")),
        "{error}"
    );
    let given = Limiter::builder().policy(policy).tokens(tollgate::core::policy::NoTokens).build();
    assert!(given.is_ok());
}

#[cfg(feature = "watch")]
mod watched {
    use std::time::Duration;

    use super::*;

    /// The most that anything here may take. What is looked at from time to time takes longer: this is by what is told.
    const DEADLINE: Duration = Duration::from_secs(10);

    fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        const STEP: Duration = Duration::from_millis(5);
        for _ in 0..DEADLINE.as_millis() / STEP.as_millis() {
            if is_so() {
                return;
            }
            std::thread::park_timeout(STEP);
        }
        panic!("waited for {what}");
    }

    fn of(version: u32) -> String {
        format!(
            "limiters: {{ v{version}: {{ rate: 10/h, per: global }}, it: {{ rate: 10/h, per: global }} }}\n"
        )
    }

    fn is_at_work(limiter: &Limiter, version: u32) -> bool {
        *limiter.policy().limiters()[0].name == *format!("v{version}")
    }

    fn wait_for_version(limiter: &Limiter, version: u32) {
        wait_for(&format!("version {version}: {:?}", limiter.report().reloads), || {
            is_at_work(limiter, version)
        });
    }

    fn wait_for_successes(limiter: &Limiter, successes: u64) {
        wait_for(&format!("{successes} successes: {:?}", limiter.report().reloads), || {
            limiter.report().reloads.succeeded == successes
        });
    }

    /// Does something that makes a file useless, and waits until that is noticed.
    fn wait_for_failure<T>(limiter: &Limiter, break_it: impl FnOnce() -> T) -> T {
        let before = limiter.report().reloads.failed;
        let done = break_it();
        wait_for(&format!("a failure: {:?}", limiter.report().reloads), || {
            limiter.report().reloads.failed > before
        });
        done
    }

    fn start(path: &Path) -> Limiter {
        builder().policy_file(path).build().unwrap()
    }

    #[test]
    fn a_file_is_loaded_when_it_is_written_in_place_or_another_is_put_there() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", of(0));
        let limiter = start(&path);
        assert_eq!(passes(&limiter, 4), 4);
        let watcher = limiter.watch_file(&path).unwrap();
        for version in 1..6 {
            match version % 2 {
                0 => drop(folder.write("policy.yaml", of(version))),
                _ => folder.replace("policy.yaml", of(version)),
            }
            wait_for_version(&limiter, version);
        }
        // Each once, and none at start.
        wait_for_successes(&limiter, 5);
        assert_eq!(passes(&limiter, 10), 6, "what was used stays used");
        drop(watcher);
    }

    #[test]
    fn a_file_that_is_as_it_was_is_not_loaded_whether_or_not_it_is_good() {
        for (text, failed) in [(of(0), 0), ("limiters: { a".to_owned(), 1)] {
            let folder = Folder::new();
            let path = folder.write("policy.yaml", &text);
            let (limiter, _) = builder().policy_file(&path).build_or_open().unwrap();
            let _watcher = limiter.watch_file(&path).unwrap();
            for _ in 0..20 {
                folder.replace("policy.yaml", &text);
                folder.write("other", "x");
                // So that there is more than one look.
                std::thread::park_timeout(Duration::from_millis(20));
            }
            folder.replace("policy.yaml", of(1));
            wait_for_successes(&limiter, 1);
            assert!(is_at_work(&limiter, 1));
            assert_eq!(limiter.report().reloads.failed, failed);
        }
    }

    /// As Kubernetes does it: `policy.yaml -> ..data/policy.yaml`, `..data -> ..1`, and then another `..data`.
    #[cfg(unix)]
    #[test]
    fn links_that_are_swapped_are_followed() {
        use std::os::unix::fs::symlink;
        let folder = Folder::new();
        let publish = |version: u32| {
            let name = format!("..{version}");
            std::fs::create_dir(folder.file(&name)).unwrap();
            folder.write(&format!("{name}/policy.yaml"), of(version));
            symlink(&name, folder.file("..data_tmp")).unwrap();
            std::fs::rename(folder.file("..data_tmp"), folder.file("..data")).unwrap();
            if version > 0 {
                std::fs::remove_dir_all(folder.file(&format!("..{}", version - 1))).unwrap();
            }
        };
        publish(0);
        let path = folder.file("policy.yaml");
        symlink("..data/policy.yaml", &path).unwrap();
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        for version in 1..5 {
            publish(version);
            wait_for_version(&limiter, version);
        }
        assert_eq!(limiter.report().reloads.failed, 0);
        // Also where the links lead, after they were swapped.
        folder.write("..4/policy.yaml", of(7));
        wait_for_version(&limiter, 7);
    }

    /// A link to a file elsewhere, which is changed there.
    #[cfg(unix)]
    #[test]
    fn a_file_is_watched_where_it_is_and_where_its_link_is() {
        let (folder, elsewhere) = (Folder::new(), Folder::new());
        let target = elsewhere.write("real.yaml", of(0));
        let path = folder.file("policy.yaml");
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        elsewhere.write("real.yaml", of(1));
        wait_for_version(&limiter, 1);
        elsewhere.replace("real.yaml", of(2));
        wait_for_version(&limiter, 2);
        folder.replace("policy.yaml", of(3));
        wait_for_version(&limiter, 3);
    }

    #[test]
    fn a_file_that_goes_changes_nothing_and_is_loaded_when_it_is_back() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", of(0));
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        wait_for_failure(&limiter, || std::fs::remove_file(&path).unwrap());
        assert!(limiter.report().reloads.error.unwrap().contains("No such file"));
        assert!(is_at_work(&limiter, 0));
        assert_eq!(passes(&limiter, 20), 10);
        folder.write("policy.yaml", of(1));
        wait_for_version(&limiter, 1);
        wait_for("no error", || limiter.report().reloads.error.is_none());
        // The whole folder goes, and another is there.
        wait_for_failure(&limiter, || std::fs::remove_dir_all(folder.path()).unwrap());
        assert!(is_at_work(&limiter, 1));
        std::fs::create_dir(folder.path()).unwrap();
        folder.write("policy.yaml", of(2));
        wait_for_version(&limiter, 2);
        folder.write("policy.yaml", of(3));
        wait_for_version(&limiter, 3);
    }

    #[test]
    fn a_file_that_is_half_written_is_loaded_when_it_is_whole() {
        use std::io::Write;
        let folder = Folder::new();
        let path = folder.write("policy.yaml", of(0));
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        let text = of(1);
        let (first, second) = text.split_at(text.len() / 2);
        wait_for_failure(&limiter, || std::fs::write(&path, first).unwrap());
        assert!(is_at_work(&limiter, 0));
        assert!(limiter.report().reloads.error.unwrap().contains("policy.yaml:1:"));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(second.as_bytes()).unwrap();
        drop(file);
        wait_for_version(&limiter, 1);
        wait_for("no error", || limiter.report().reloads.error.is_none());
    }

    /// A server that started with a bad file gets well by itself; what is wrong is counted once.
    #[test]
    fn a_start_with_a_bad_file_gets_well() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", "limiters: { a");
        let (limiter, wrong) = Limiter::builder().policy_file(&path).build_or_open().unwrap();
        assert!(wrong.is_some());
        let _watcher = limiter.watch_file(&path).unwrap();
        folder.replace("policy.yaml", of(1));
        wait_for_successes(&limiter, 1);
        let reloads = limiter.report().reloads;
        assert_eq!((reloads.failed, reloads.error), (1, None));
        assert!(is_at_work(&limiter, 1));

        // One whose folder is not even there.
        let path = folder.file("later/policy.yaml");
        let (limiter, _) = Limiter::builder().policy_file(&path).build_or_open().unwrap();
        let _watcher = limiter.watch_file(&path).unwrap();
        std::fs::create_dir(folder.file("later")).unwrap();
        folder.write("later/policy.yaml", of(1));
        wait_for("a policy", || !limiter.policy().limiters().is_empty());
    }

    /// What has changed between the start and the watch is loaded; and so is a file that the limiter was not made from.
    #[test]
    fn what_changed_before_is_loaded() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", of(0));
        let limiter = start(&path);
        folder.write("policy.yaml", of(1));
        let watcher = limiter.watch_file(&path).unwrap();
        wait_for_version(&limiter, 1);
        drop(watcher);
        folder.write("other.yaml", of(2));
        let _watcher = limiter.watch_file(folder.file("other.yaml")).unwrap();
        wait_for_version(&limiter, 2);
    }

    #[test]
    fn nothing_is_loaded_once_a_watcher_is_dropped() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", of(0));
        let (limiter, other) = (start(&path), start(&path));
        let watcher = limiter.watch_file(&path).unwrap();
        let _goes_on = other.watch_file(&path).unwrap();
        folder.replace("policy.yaml", of(1));
        wait_for_version(&limiter, 1);
        drop(watcher);
        folder.replace("policy.yaml", of(2));
        wait_for_version(&other, 2);
        assert!(is_at_work(&limiter, 1));
        // And a watcher does not keep a limiter alive.
        let watcher = limiter.watch_file(&path).unwrap();
        wait_for_version(&limiter, 2);
        drop(limiter);
        folder.replace("policy.yaml", of(3));
        wait_for_version(&other, 3);
        drop(watcher);
    }

    /// Keys are replaced more often than policies are.
    #[cfg(feature = "jwt")]
    #[test]
    fn keys_that_change_are_seen_though_the_policy_does_not() {
        let folder = Folder::new();
        let path = folder.write(
            "policy.yaml",
            "identify: { caller: [jwt: sub], jwt: { jwks_file: keys.json } }\nlimiters: { v0: { rate: 1/s } }",
        );
        let key = r#"{ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }"#;
        folder.write("keys.json", format!(r#"{{ "keys": [{key}] }}"#));
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        wait_for_failure(&limiter, || folder.replace("keys.json", "{}"));
        assert!(limiter.report().reloads.error.unwrap().contains("is no set of keys"));
        folder.replace("keys.json", format!(r#"{{ "keys": [{key}, {key}] }}"#));
        wait_for_successes(&limiter, 1);
        wait_for_failure(&limiter, || std::fs::remove_file(folder.file("keys.json")).unwrap());
        folder.replace("keys.json", format!(r#"{{ "keys": [{key}] }}"#));
        wait_for_successes(&limiter, 2);
    }

    /// F 57: files of every kind, as fast as they can be written, while requests come. Nothing panics, nobody is kept waiting,
    /// and in the end the last good one is at work.
    #[test]
    fn fuzzed_files_under_load() {
        let folder = Folder::new();
        let path = folder.write("policy.yaml", GOOD);
        let limiter = start(&path);
        let _watcher = limiter.watch_file(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Acquire) {
                        let headers = [("x-api-key", "k")];
                        let facts =
                            Facts { method: "POST", path: "/login", headers: &headers, ..Facts::default() };
                        match limiter.admit_now(&facts) {
                            Ok(permit) => drop(permit.decision()),
                            Err(refusal) => drop(refusal.answer(None, "/login")),
                        }
                    }
                });
            }
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
            let mut random = move |below: usize| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                (seed % below.max(1) as u64) as usize
            };
            for round in 0..200 {
                // Every third is good, and another one.
                let mut bytes = GOOD.replace("100/h", &format!("{}/h", 100 + round)).into_bytes();
                for _ in 0..random(6).saturating_sub(1) {
                    let at = random(bytes.len());
                    match random(6) {
                        0 => bytes.truncate(at),
                        1 => bytes.extend_from_within(at..),
                        2 => drop(bytes.drain(at..(at + random(30)).min(bytes.len()))),
                        3 => bytes.insert(at, random(256) as u8),
                        4 if at < bytes.len() => bytes[at] = b"0123456789:{}[],-/% \n#&*\"'"[random(26)],
                        _ => bytes.extend_from_slice(b"limiters: { a: { rate: 9999999999999999999999/s } }"),
                    }
                }
                match random(3) {
                    0 => drop(folder.write("policy.yaml", &bytes)),
                    1 => folder.replace("policy.yaml", &bytes),
                    _ => drop(std::fs::remove_file(&path)),
                }
                // By hand at the same time, as a signal does.
                if round % 3 == 0 {
                    let _ = limiter.reload_file(&path);
                }
                std::thread::park_timeout(Duration::from_millis(8));
            }
            folder.replace("policy.yaml", of(9));
            wait_for_version(&limiter, 9);
            wait_for("no error", || limiter.report().reloads.error.is_none());
            stop.store(true, Ordering::Release);
        });
        let report = limiter.report();
        assert_eq!((report.totals.panics, report.totals.store_errors, report.in_flight), (0, 0, 0));
        assert!(report.totals.asked > 10_000, "{report:?}");
        assert!(report.reloads.failed > 10 && report.reloads.succeeded > 1, "{:?}", report.reloads);
        assert_eq!(report.reloads.error, None);
    }
}

/// Found by a reader: a threshold that was moved a little let everything back at once, and nobody knew how busy the box was.
#[test]
fn what_a_worker_sheds_is_shed_over_changes_of_its_settings() {
    let of = |settings: &str| {
        format!("limiters: {{ w: {{ workers: {{ source: reported, every: 1s, {settings} }} }} }}")
    };
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let policy = of("grace: 10s, full: 100s, bad: 80%");
    let limiter = Limiter::builder().clock(clock.clone()).policy(&policy).build().unwrap();
    let tend = |limiter: &Limiter, seconds: u64| {
        for _ in 0..seconds {
            clock.advance(Duration::from_secs(1));
            limiter.report_utilization(1_000_000);
            let _ = pin!(limiter.tend()).poll(&mut Context::from_waker(Waker::noop()));
        }
    };
    let shed = |limiter: &Limiter| {
        let worker = limiter.report().worker.unwrap();
        let shares: Vec<u64> = worker.shed_ppm.iter().map(|(_, share)| *share).collect();
        (worker.utilization_ppm, shares)
    };
    // The first look, ten seconds of grace, and half of the way.
    tend(&limiter, 1 + 10 + 50);
    let half = shed(&limiter);
    assert_eq!(half.0, Some(1_000_000));
    assert!(half.1.contains(&1_000_000) && half.1.contains(&500_000), "{half:?}");
    for settings in ["grace: 10s, full: 100s, bad: 81%", "grace: 5s, full: 33s, bad: 90%, good: 60%"] {
        limiter.reload_text(&of(settings)).unwrap();
        let (known, shares) = shed(&limiter);
        let is_near = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= 1;
        assert!(
            known == half.0 && shares.iter().zip(&half.1).all(is_near),
            "{settings}: {shares:?} {half:?}"
        );
    }
    // Also where there is nothing but the grace.
    let rested = Limiter::builder().clock(clock.clone()).policy(&of("grace: 0s, full: 10s")).build().unwrap();
    rested.reload_text(&of("grace: 10s, full: 10s")).unwrap();
    tend(&rested, 1 + 9);
    assert!(shed(&rested).1.iter().all(|share| *share == 0), "whoever was at rest has all of the grace");
}
