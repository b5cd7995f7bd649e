//! What is legal and probably not meant.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use super::super::address::{AddressHeader, ClientAddress, parse_network};
use super::super::condition::Condition;
use super::super::describe;
use super::super::document::{Node, Value};
use super::super::identify::{Identify, Source};
use super::super::mistakes::Place;
use super::super::quantity::{Rate, spelled};
use super::super::{Cost, Kind, List, Mode, Part, StoreChoice};
use super::OF_NETWORKS;
use super::classes::{ReadClass, contradicts};
use super::limiters::Drafted;
use super::quotas::{Limits, Quota};
use super::reader::{Fields, Reader};
use crate::limit::Limit;
use crate::time::Nanos;

/// What is already known when a policy is looked over.
pub(super) struct Known<'k> {
    pub(super) store: &'k StoreChoice,
    pub(super) identify: &'k Identify,
    pub(super) address: &'k ClientAddress,
    pub(super) allow: &'k List,
    pub(super) block: &'k List,
    pub(super) timeout: Nanos,
    /// Names of plans, and where they stand.
    pub(super) plans: &'k [(&'k str, Place)],
    pub(super) default_plan: Option<usize>,
    /// Plans that callers have by name.
    pub(super) held: &'k [usize],
}

impl Reader<'_> {
    pub(super) fn unwise(
        &mut self,
        top: &Fields<'_>,
        known: &Known<'_>,
        classes: &[ReadClass],
        drafts: &[Drafted],
    ) {
        let timeout = known.timeout;
        self.unproxied(top, known, classes, drafts);
        self.believed(top, known.address);
        self.idle_hops(top, known.address);
        self.idle_plans(top, known, classes, drafts);
        if top.get("path_case").is_none() {
            self.case_evasion(classes, drafts);
        }
        let is_enforced = self.mode(top) == Mode::Enforce;
        let unreachable = self.unreachable(classes);
        for draft in drafts {
            self.unmatched(draft, classes, &unreachable);
            self.never_passing(draft, classes);
            self.all_reserved(draft);
            self.fleet_per_caller(draft);
            self.long_queue(draft, timeout);
            self.sampled(draft);
            self.login_bucket(draft, known.identify);
            if is_enforced {
                self.wide_candidate(draft);
            }
            // In memory places are held without a lease.
            let shared = known.store.url.is_some();
            let has_leases = matches!(draft.limiter.kind, Kind::Concurrency | Kind::Fleet { .. });
            if has_leases && shared && draft.lease < timeout {
                let place = draft.lease_place.unwrap_or(draft.place);
                let message = format!(
                    "a lease of {} is shorter than what the gateway waits for an answer ({})",
                    spelled(draft.lease),
                    spelled(timeout)
                );
                self.warn(place, message, "a request whose lease cannot be renewed in time is not counted any more while it goes on");
            }
            if draft.limiter.mode == Mode::Off && draft.limiter.candidate.is_some() {
                self.warn(
                    draft.place,
                    "a limiter that is off counts no candidate either",
                    "did you mean `mode: dark`?",
                );
            }
        }
    }

    /// A limiter that a path in upper case evades, if the server ignores case. One warning for the file is enough: the answer
    /// is a property of the server and goes into one field.
    fn case_evasion(&mut self, classes: &[ReadClass], drafts: &[Drafted]) {
        let in_class = |class: &usize| {
            let conditions = classes.get(*class).map_or(&[][..], |read| &read.class.conditions);
            conditions.iter().find_map(Condition::evaded_by_case)
        };
        let evaded = |draft: &Drafted| {
            let matches = &draft.limiter.matches;
            let by_match = matches.iter().find_map(|condition| {
                condition.evaded_by_case().or_else(|| condition.classes.iter().find_map(in_class))
            });
            // A request that leaves its class may cost less.
            let by_cost = || match &draft.limiter.cost {
                Cost::ByClass { classes, otherwise } => {
                    let is_dear = |(_, cost): &&(usize, u64)| cost > otherwise;
                    classes.iter().filter(is_dear).find_map(|(class, _)| in_class(class))
                }
                _ => None,
            };
            by_match.or_else(by_cost).map(|path| path.as_str().to_owned())
        };
        let is_on = |draft: &&Drafted| draft.limiter.mode != Mode::Off;
        let first = drafts.iter().filter(is_on).find_map(|draft| Some((draft, evaded(draft)?)));
        if let Some((draft, path)) = first {
            let upper = path.to_ascii_uppercase();
            let other = if upper == path { path.to_ascii_lowercase() } else { upper };
            let message = format!(
                "a request for `{other}` is not limited by {:?}, which matches `{path}`: some servers (Express, IIS) \
                 treat these as the same path",
                draft.limiter.name
            );
            let help = "add `path_case: insensitive` to the policy, or `path_case: sensitive` if your server tells them apart";
            self.warn(draft.place, message, help);
        }
    }

    /// Everybody in one bucket, or plans that callers choose for themselves.
    fn unproxied(&mut self, top: &Fields<'_>, known: &Known<'_>, classes: &[ReadClass], drafts: &[Drafted]) {
        let identify = known.identify;
        let is_told = top.get("trusted_proxies").is_some() || top.get("trusted_hops").is_some();
        let by_caller = identify.caller.iter().any(|(source, _)| *source == Source::Ip);
        let asks = |draft: &&Drafted| {
            let per = &draft.limiter.per;
            per.contains(&Part::Ip) || by_caller && per.contains(&Part::Caller)
        };
        const TELL: &str = "add `trusted_proxies: [10.0.0.0/8]`, or `trusted_proxies: []` if there is none";
        let by_address = drafts.iter().find(asks);
        if let (false, Some(draft)) = (is_told, by_address) {
            self.warn(
                draft.place,
                "callers are told apart by their addresses, and behind a proxy all have that of the proxy: one bucket for everybody",
                TELL,
            );
        } else if let (false, Some(place)) = (is_told, by_network(top, known, classes, drafts)) {
            let message =
                "clients are known by their networks, and behind a proxy all have the address of the proxy";
            self.warn(place, message, TELL);
        }
        let chosen =
            |source: &Source| matches!(source, Source::Header(_) | Source::Cookie(_) | Source::Query(_));
        // With a number of proxies and no networks, every peer is taken for one.
        let is_anybody = known.address.hops.is_some() && trusts_all(top);
        if (known.address.trusted.is_empty() || is_anybody)
            && identify.plan.iter().any(chosen)
            && let Some(place) = top.place_of("identify")
        {
            let message = match is_anybody {
                true => {
                    "plans are believed of everybody: by `trusted_hops` alone every peer counts as a proxy"
                }
                false => "callers choose their plans themselves: whatever they write is believed",
            };
            let help = "add `trusted_proxies: [10.0.0.0/8]`: then only what comes through these is";
            self.warn(place, message, help);
        }
    }

    /// Proxies that anybody is. With a number of them, only so many are believed.
    fn believed(&mut self, top: &Fields<'_>, address: &ClientAddress) {
        let Some(Node { value: Value::List(list), .. }) = top.get("trusted_proxies") else { return };
        for node in list.iter().filter(|_| address.hops.is_none()) {
            if let Value::Text(text) = &node.value
                && parse_network(text).is_ok_and(|network| network.prefix_len() == 0)
            {
                self.warn(
                    node.place,
                    format!("{} is every address: whoever connects can pretend to be anybody", text.trim()),
                    "name the networks of your proxies, or say how many there are: `trusted_hops: 1`",
                );
            }
        }
    }

    /// A number of proxies, where a header holds the address of the client and none of theirs.
    fn idle_hops(&mut self, top: &Fields<'_>, address: &ClientAddress) {
        if let (AddressHeader::Named(name), Some(place)) = (&address.header, top.place_of("trusted_hops")) {
            let help = match top.get("trusted_proxies") {
                Some(_) => "leave it out",
                None => "name the networks of your proxies: `trusted_proxies: [10.0.0.0/8]`",
            };
            self.warn(place, format!("no proxies are counted in {name:?}: it holds one address"), help);
        }
    }

    /// One of `block` that passes all the same.
    pub(super) fn allowed(&mut self, place: Place, what: &str) {
        self.warn(
            place,
            format!("this {what} is on `allow` as well, and passes"),
            "`allow` goes before `block`: leave one of them out",
        );
    }

    /// Everybody passes, or nobody does.
    pub(super) fn listed_all(&mut self, place: Place, network: IpNet, is_allowed: bool) {
        if network.prefix_len() > 0 {
            return;
        }
        let (becomes, help) = match is_allowed {
            true => (
                "everybody passes without being limited",
                "name the networks that may; to limit nobody, say `mode: off`",
            ),
            false => ("nobody passes who is not on `allow`", "name the networks that may not"),
        };
        self.warn(place, format!("{network} is every address: {becomes}"), help);
    }

    /// An address as the name of a caller, where no caller is known by its address; and what is nearly one, where callers are.
    pub(super) fn addressed(&mut self, place: Place, name: &str, identify: &Identify, help: &str) {
        let is_asked = identify.caller.iter().any(|(source, _)| *source == Source::Ip);
        if !is_asked && name.parse::<IpAddr>().is_ok() {
            let message = format!("{name} is nobody: callers are not known by their addresses here");
            self.warn(place, message, help);
        } else if let (true, Some(address)) = (is_asked, nearly_address(name)) {
            let message = format!("{name} is taken for a name: it is no address");
            self.warn(place, message, format!("write `{address}`"));
        }
    }

    /// A pattern that looks as if it were of addresses.
    pub(super) fn pattern_of_addresses(&mut self, place: Place, pattern: &str, identify: &Identify) {
        let is_asked = identify.caller.iter().any(|(source, _)| *source == Source::Ip);
        let stands_for = ["0", "0.0", "0.0.0", ":"];
        if is_asked && stands_for.iter().any(|some| pattern.replace('*', some).parse::<IpAddr>().is_ok()) {
            self.warn(place, format!("{pattern} is of no address: patterns are of names"), OF_NETWORKS);
        }
    }

    /// What is behind `ip` is never asked.
    pub(super) fn behind_ip(&mut self, place: Place) {
        self.warn(place, "this is never looked at: every request has an address", "put `ip` last");
    }

    /// A limit of one caller's own, for a bucket that it shares with others: whoever comes next finds it filled by another
    /// measure. Who has no limit at all is not counted, and so meets nobody.
    pub(super) fn shared_bucket(
        &mut self,
        place: Place,
        draft: &Drafted,
        quota: &Quota,
        identify: &Identify,
    ) {
        let per = &draft.limiter.per;
        // Where callers are told apart by one thing alone, so are buckets that are told apart by it.
        let is_theirs = per.iter().any(|part| match (part, identify.caller.as_slice()) {
            (Part::Caller, _) | (Part::Ip, [(Source::Ip, _)]) => true,
            (Part::Header(part), [(Source::Header(name), _)]) => part == name,
            _ => false,
        });
        if draft.kind() == "workers" || is_theirs || quota.is_unlimited() {
            return;
        }
        let whose = if per.is_empty() { "all callers share" } else { "callers share" };
        let message = format!(
            "{:?} has buckets that {whose}, and this limit is of one caller alone",
            draft.limiter.name
        );
        self.warn(place, message, "let the limiter have `per: caller`, or make another one for this caller");
    }

    /// Rates of one limiter that never decide.
    pub(super) fn idle_rates(&mut self, rates: &[(Limit, Place)]) {
        let limits: Vec<Limit> = rates.iter().map(|(limit, _)| *limit).collect();
        for (at, by) in idle(&limits) {
            let (Some((_, place)), Some((_, by))) = (rates.get(at), rates.get(by)) else { continue };
            let by = self.mistakes.text_at(*by).to_owned();
            let message = format!("this rate never decides: {by} is at least as strict in all");
            self.warn(*place, message, "leave it out");
        }
    }

    /// A guard against guessing that lets twice as many attempts pass at first as it states: a bucket starts full, and refills
    /// while it is used up. Who names the algorithm means it.
    fn login_bucket(&mut self, draft: &Drafted, identify: &Identify) {
        /// Guards against guessing are slow. What refills faster is a limit on load.
        const SLOW: u64 = 2_000_000_000;
        let limiter = &draft.limiter;
        let is_by_ip = match limiter.per.as_slice() {
            [Part::Ip] => true,
            [Part::Caller] => matches!(identify.caller.as_slice(), [(Source::Ip, _)]),
            _ => false,
        };
        let is_guard = is_of_logins(draft) || is_by_ip && has_only_posts(&limiter.matches);
        if draft.has_algorithm || draft.kind() != "rate" || !is_guard {
            return;
        }
        let slow = limiter.choices.iter().take(draft.common).flatten().find_map(|limit| match limit {
            Limit::Bucket(bucket) if bucket.token() / bucket.leak() >= SLOW && limit.capacity() > 1 => {
                Some((describe::rate_of(bucket, limit.capacity()), limit.capacity()))
            }
            _ => None,
        });
        let Some((Rate { count, period }, burst)) = slow else { return };
        let message = format!(
            "{:?} lets up to {} requests pass in the first {}: its bucket starts with {burst} and {count} come back meanwhile",
            limiter.name,
            burst.saturating_add(count),
            spelled(period),
        );
        let help = "add `algorithm: sliding-log`, which never lets more pass in any period; or `algorithm: token-bucket` if this is meant";
        self.warn(draft.place, message, help);
    }

    /// A share that is nobody, or of one.
    fn sampled(&mut self, draft: &Drafted) {
        let (Some(place), Mode::Enforce) = (draft.sample_place, draft.limiter.mode) else { return };
        match draft.limiter.sample_ppm {
            0 => self.warn(place, "it is enforced for nobody", "say `mode: dark`"),
            1_000_000 => {}
            _ if draft.limiter.per.is_empty() => self.warn(
                place,
                "a share of one bucket is all or nothing",
                "leave it out, or tell buckets apart: `per: caller`",
            ),
            _ => {}
        }
    }

    /// A candidate that refuses nothing that was not refused before. In the dark both are asked everything.
    fn wide_candidate(&mut self, draft: &Drafted) {
        let limiter = &draft.limiter;
        let (Some(candidate), Some(place)) = (&limiter.candidate, draft.candidate_place) else { return };
        let is_wide = |limits: &Limits| {
            candidate.iter().all(|candidate| limits.iter().any(|limit| limit.covers(candidate)))
        };
        if limiter.mode == Mode::Enforce
            && limiter.sample_ppm == 1_000_000
            && !limiter.is_settled()
            && !limiter.choices.is_empty()
            && limiter.choices.iter().take(draft.common).all(is_wide)
        {
            self.warn(
                place,
                "this candidate counts nothing: what it would refuse has been refused before",
                "make it stricter than the limit; to try a wider one, say `mode: dark`",
            );
        }
    }

    /// Classes that no request can be of, because others come first.
    pub(super) fn unreachable(&mut self, classes: &[ReadClass]) -> Vec<usize> {
        let mut unreachable = Vec::new();
        // Each is held against all that come before: with very many of them nobody waits for that.
        let many: usize = classes.iter().map(|read| read.class.conditions.len()).sum();
        let classes = if many > 2000 { &[] } else { classes };
        for (at, read) in classes.iter().enumerate() {
            let before = || classes.iter().take(at).flat_map(|read| &read.class.conditions);
            let conditions = &read.class.conditions;
            let is_covered = !conditions.is_empty()
                && conditions.iter().all(|condition| before().any(|wide| wide.covers(condition)));
            if is_covered || conditions.is_empty() {
                unreachable.push(at);
            }
            if let (true, Some(place)) = (is_covered, read.place) {
                let message = format!("no request is ever of class {:?}", read.class.name);
                self.warn(place, message, "classes before it take all of it: the first that matches wins");
            }
        }
        let takes_all = |condition: &Condition| condition.covers(&Condition::default());
        if classes.iter().any(|read| read.class.conditions.iter().any(takes_all)) {
            unreachable.push(classes.len());
        }
        unreachable
    }

    pub(super) fn unmatched(&mut self, draft: &Drafted, classes: &[ReadClass], unreachable: &[usize]) {
        let conditions = &draft.limiter.matches;
        let is_dead = |class: &usize| unreachable.contains(class);
        let impossible = |condition: &Condition| {
            condition.is_impossible()
                || contradicts(condition, classes)
                || !condition.classes.is_empty() && condition.classes.iter().all(is_dead)
        };
        if !conditions.is_empty() && conditions.iter().all(impossible) {
            self.dead(draft.place, &draft.limiter.name);
        }
    }

    /// A request that costs more than there can ever be.
    fn never_passing(&mut self, draft: &Drafted, kinds: &[ReadClass]) {
        let Some(least) = draft.limiter.choices.iter().flatten().map(Limit::capacity).min() else { return };
        let dearest = match &draft.limiter.cost {
            Cost::Fixed(cost) | Cost::Settled { estimate: cost, .. } => *cost,
            Cost::Given => 1,
            Cost::ByClass { classes, otherwise } => {
                let is_dear = |(class, cost): &&(usize, u64)| *cost > least && sees(draft, *class, kinds);
                let named = classes.iter().filter(is_dear).map(|(_, cost)| *cost).max().unwrap_or(0);
                let mut others = (0..=kinds.len()).filter(|class| !classes.iter().any(|(of, _)| of == class));
                match *otherwise > named.max(least) && others.any(|class| sees(draft, class, kinds)) {
                    true => *otherwise,
                    false => named,
                }
            }
            // Without `max` nobody has said what is meant to pass.
            Cost::Header { otherwise, max: u64::MAX, .. } => *otherwise,
            Cost::Header { otherwise, max, .. } => *max.max(otherwise),
        };
        if dearest > least {
            let message =
                format!("a request that costs {dearest} never passes where there are {least} at once");
            let help = match draft.kind() {
                "rate" if draft.has_bursts() => "add `burst`, or let it cost less",
                "rate" => "let more pass in a period, or let it cost less",
                "concurrency" => "let more be in progress, or let it cost less",
                _ => "let the fleet have more places, or let it cost less",
            };
            self.warn(draft.place, message, help);
        }
    }

    /// A fleet of which those who are not critical get nothing.
    fn all_reserved(&mut self, draft: &Drafted) {
        let of_nobody = |limit: &&Limit| matches!(limit, Limit::Fleet(fleet) if fleet.allocation() == 0);
        if let Some(fleet) = draft.limiter.choices.iter().flatten().find(of_nobody) {
            let places = fleet.capacity();
            let message = format!("of {places} in all none is left for requests that are not critical");
            self.warn(
                draft.place,
                message,
                "all of them get 503, at all times: reserve less, or let the fleet have more places",
            );
        }
    }

    /// A fleet that is not one for all callers together: then it protects nothing as a whole.
    fn fleet_per_caller(&mut self, draft: &Drafted) {
        let tells_callers_apart = |part: &Part| matches!(part, Part::Caller | Part::Ip);
        if let (Kind::Fleet { .. }, Some(places)) =
            (&draft.limiter.kind, draft.limiter.choices.iter().flatten().map(Limit::capacity).next())
            && draft.limiter.per.iter().any(tells_callers_apart)
        {
            let message = format!(
                "each caller has {places} places of its own here, so all callers together can use more than the fleet has"
            );
            let help = "remove `per` to share the fleet; for a limit per caller use `concurrency`";
            self.warn(draft.per_place.unwrap_or(draft.place), message, help);
        }
    }

    /// A queue in which requests wait longer than anybody waits for an answer.
    fn long_queue(&mut self, draft: &Drafted, timeout: Nanos) {
        let queues = draft.limiter.choices.iter().flatten().filter_map(|limit| match limit {
            Limit::Bucket(queue) if queue.undelayed().is_some() => {
                let waiting = u128::from(limit.capacity().saturating_sub(1)) * u128::from(queue.token());
                Some((waiting / u128::from(queue.leak()), queue))
            }
            _ => None,
        });
        let Some((longest, queue)) = queues.max_by_key(|(longest, _)| *longest) else { return };
        if longest > u128::from(timeout.as_u64()) {
            let waits = Nanos::new(u64::try_from(longest).unwrap_or(u64::MAX));
            let waits = Nanos::from_secs(waits.as_secs_ceil());
            let fits = u128::from(timeout.as_u64()) * u128::from(queue.leak()) / u128::from(queue.token());
            let message = format!(
                "a request may wait for up to {} in this queue: longer than an answer may take ({})",
                spelled(waits),
                spelled(timeout)
            );
            let help = match fits {
                0 => "let more pass in a period".to_owned(),
                fits => format!("make `burst` smaller: {fits} wait no longer than that"),
            };
            self.warn(draft.place, message, help);
        }
    }

    /// Plans that nothing asks for, and plans that nobody has.
    fn idle_plans(&mut self, top: &Fields<'_>, known: &Known<'_>, classes: &[ReadClass], drafts: &[Drafted]) {
        fn asks(condition: &Condition) -> bool {
            !condition.plans.is_empty() || condition.not.iter().any(asks)
        }
        let Some(place) = top.place_of("plans").filter(|_| !drafts.is_empty()) else { return };
        let is_asked = classes.iter().any(|read| read.class.conditions.iter().any(asks))
            || drafts.iter().any(|Drafted { limiter, .. }| {
                !limiter.by_plan.is_empty()
                    || limiter.per.contains(&Part::Plan)
                    || limiter.matches.iter().any(asks)
            });
        let plans = known.plans;
        if !is_asked {
            let message = "no limiter asks for plans: they change nothing";
            return self.warn(place, message, "let a limiter have `rate: plan` or `concurrency: plan`");
        }
        let is_anybodys = |source: &Source| *source != Source::Table;
        if known.identify.plan.iter().any(is_anybodys) {
            return;
        }
        let has = |plan: usize| known.default_plan == Some(plan) || known.held.contains(&plan);
        let idle: Vec<usize> = (0..plans.len()).filter(|plan| !has(*plan)).collect();
        let (Some(default), false) = (known.default_plan.and_then(|plan| plans.get(plan)), idle.is_empty())
        else {
            return;
        };
        if known.identify.plan.is_empty() {
            let message =
                format!("callers have the plan {:?}: nothing says where others are looked for", default.0);
            let help = "add `plan` to `identify`, unless a program tells plans itself (`Facts::plan`)";
            return self.warn(place, message, help);
        }
        for (name, place) in idle.into_iter().filter_map(|plan| plans.get(plan)) {
            self.warn(*place, format!("nobody has the plan {name:?}"), "name its callers in `table`");
        }
    }

    fn dead(&mut self, place: Place, name: &str) {
        self.warn(place, format!("no request can match {name:?}"), "it limits nothing");
    }
}

/// Whether a limiter is about logins, by its name or by the paths that it matches.
fn is_of_logins(draft: &Drafted) -> bool {
    const WORDS: [&str; 12] = [
        "login",
        "logon",
        "signin",
        "password",
        "passwd",
        "passcode",
        "otp",
        "totp",
        "mfa",
        "2fa",
        "authenticate",
        "credentials",
    ];
    let is_word = |word: &str| {
        let word = word.to_ascii_lowercase();
        WORDS.contains(&&*word) || word.strip_suffix('s').is_some_and(|one| WORDS.contains(&one))
    };
    // `/sign-in` and `/signin` are the same, and so are `/password-reset` and `/password/reset`.
    let is_login = |text: &str| {
        text.split('/').any(|segment| {
            let is_separator = |c: char| !c.is_ascii_alphanumeric();
            is_word(&segment.replace(is_separator, "")) || segment.split(is_separator).any(is_word)
        })
    };
    let mut paths = draft.limiter.matches.iter().flat_map(|condition| &condition.paths);
    is_login(&draft.limiter.name) || paths.any(|path| is_login(path.as_str()))
}

/// Whether conditions are for POST and certain paths alone.
fn has_only_posts(conditions: &[Condition]) -> bool {
    let is_post = |condition: &Condition| {
        matches!(condition.methods.as_slice(), [method] if method.eq_ignore_ascii_case("post"))
            && !condition.paths.is_empty()
            && condition.paths.iter().all(|path| !path.as_str().contains('*'))
    };
    !conditions.is_empty() && conditions.iter().all(is_post)
}

/// Rates of one limiter that never decide, each with the one that does.
pub(super) fn idle(limits: &[Limit]) -> Vec<(usize, usize)> {
    let decides = |at: usize, limit: &Limit| {
        let mut others = limits.iter().enumerate();
        others.position(|(other, strict)| {
            other != at && strict.covers(limit) && (!limit.covers(strict) || other < at)
        })
    };
    limits.iter().enumerate().filter_map(|(at, limit)| Some((at, decides(at, limit)?))).collect()
}

/// The address that was probably meant by what is none: one with a port, brackets, a zone, or zeros in front of its numbers.
fn nearly_address(text: &str) -> Option<IpAddr> {
    if text.parse::<IpAddr>().is_ok() {
        return None;
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let bare = bare.split_once('%').map_or(bare, |(address, _)| address);
    let (host, port) = bare.split_once(':').unwrap_or((bare, "0"));
    let parts: Option<Vec<u8>> = host.split('.').map(decimal).collect();
    let padded = parts.and_then(|parts| <[u8; 4]>::try_from(parts).ok()).map(Ipv4Addr::from);
    let with_port = text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let padded = padded.filter(|_| port.parse::<u16>().is_ok()).map(IpAddr::V4);
    bare.parse().ok().or(with_port).or(padded)
}

/// A number of an IPv4 address, with zeros in front of it or not.
fn decimal(text: &str) -> Option<u8> {
    let is_plain = (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// Whether requests of a class can be among those that a limiter is for.
fn sees(draft: &Drafted, class: usize, kinds: &[ReadClass]) -> bool {
    let matches = &draft.limiter.matches;
    let can_be = |condition: &Condition| {
        let only = Condition { classes: vec![class], ..condition.clone() };
        (condition.classes.is_empty() || condition.classes.contains(&class))
            && !only.is_impossible()
            && !contradicts(&only, kinds)
    };
    matches.is_empty() || matches.iter().any(can_be)
}

/// Whether every peer is taken for a proxy.
fn trusts_all(top: &Fields<'_>) -> bool {
    let is_all = |node: &Node| matches!(&node.value, Value::Text(text) if parse_network(text).is_ok_and(|network| network.prefix_len() == 0));
    match top.get("trusted_proxies").map(|node| &node.value) {
        Some(Value::List(list)) => list.iter().any(is_all),
        _ => true,
    }
}

/// The first that asks for the network of a client.
fn by_network(
    top: &Fields<'_>,
    known: &Known<'_>,
    classes: &[ReadClass],
    drafts: &[Drafted],
) -> Option<Place> {
    fn asks(condition: &Condition) -> bool {
        condition.networks.is_some() || condition.not.iter().any(asks)
    }
    let class = classes.iter().find(|read| read.class.conditions.iter().any(asks));
    let limiter = drafts.iter().find(|draft| draft.limiter.matches.iter().any(asks));
    let listed = [("block", known.block), ("allow", known.allow)];
    let list = listed.into_iter().find(|(_, list)| !list.networks.is_empty());
    list.and_then(|(name, _)| top.place_of(name))
        .or(class.and_then(|read| read.place))
        .or(limiter.map(|draft| draft.place))
}
