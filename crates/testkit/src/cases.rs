//! One table of requests and answers for every door: the same request gets the same answer, whichever way it came.

/// Requests that are made one after the other under one policy, at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// The requests.
    pub requests: &'static [Asked],
}

/// A request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// How often it is made; the answer is the same each time.
    pub times: usize,
    /// `GET`
    pub method: &'static str,
    /// The path, with its query.
    pub target: &'static str,
    /// Its headers.
    pub headers: &'static [(&'static str, &'static str)],
    /// The status of the answer.
    pub status: u16,
    /// The limiter that refuses, if one does.
    pub limiter: &'static str,
    /// Its `Retry-After`; empty if there is none, or if it is drawn by lot.
    pub retry_after: &'static str,
}

const fn passes(
    times: usize,
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
) -> Asked {
    Asked { times, method, target, headers, status: 200, limiter: "", retry_after: "" }
}

const fn refused(asked: Asked, status: u16, limiter: &'static str, retry_after: &'static str) -> Asked {
    Asked { times: 2, status, limiter, retry_after, ..asked }
}

type List = &'static [(&'static str, &'static str)];
const A: List = &[("x-api-key", "a")];
const B: List = &[("x-api-key", "b")];
const TWICE: List = &[("x-api-key", "a"), ("x-api-key", "z")];
const EMPTY: List = &[("x-api-key", "")];
const WITH_EMPTY: List = &[("x-api-key", "a"), ("x-api-key", "")];
const SAME: List = &[("x-api-key", "a"), ("X-Api-Key", "a")];
const ODD: List = &[("X-API-Key", "a")];
const TEST: List = &[("x-api-key", "sk_test_1")];
const PRO: List = &[("x-api-key", "p"), ("x-plan", "pro")];
const COSTS: List = &[("x-api-key", "a"), ("x-cost", "3")];
const FREE: List = &[("x-api-key", "a"), ("x-cost", "0")];

/// All of them. All requests come from one peer on this machine.
pub const CASES: &[Case] = &[
    Case {
        name: "a rate by caller",
        policy: "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { rate: { rate: 3/min } }",
        requests: &[
            passes(3, "GET", "/x", A),
            refused(passes(1, "GET", "/x", A), 429, "rate", "20"),
            passes(3, "POST", "/y?z=1", B),
            refused(passes(1, "GET", "/x", B), 429, "rate", "20"),
            refused(passes(1, "GET", "/x", ODD), 429, "rate", "20"),
        ],
    },
    Case {
        name: "keys that are empty, or not there at all, are one bucket: that of the address",
        policy: "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { rate: { rate: 2/min } }",
        requests: &[
            passes(1, "GET", "/x", EMPTY),
            passes(1, "GET", "/x", &[]),
            refused(passes(1, "GET", "/x", EMPTY), 429, "rate", "30"),
            passes(1, "GET", "/x", A),
        ],
    },
    Case {
        name: "who says two things of who is calling is neither, and not somebody else either",
        policy: "identify: { caller: [header: x-api-key, query: key, ip] }\nblock: [caller: a]\ntrusted_proxies: []\n\
                 limiters: { rate: { rate: 3/min } }",
        requests: &[
            refused(passes(1, "GET", "/x", A), 403, "block", ""),
            refused(passes(1, "GET", "/x", SAME), 403, "block", ""),
            refused(passes(1, "GET", "/x", TWICE), 400, "identify", ""),
            refused(passes(1, "GET", "/x", WITH_EMPTY), 400, "identify", ""),
            refused(passes(1, "GET", "/x?key=a&key=", &[]), 400, "identify", ""),
            passes(1, "GET", "/x?key=a&key=", B),
        ],
    },
    Case {
        name: "everything dark refuses nobody for that either",
        policy: "mode: dark\nidentify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\n\
                 limiters: { rate: { rate: 1/h } }",
        requests: &[passes(3, "GET", "/x", TWICE)],
    },
    Case {
        name: "forged addresses are not believed",
        policy: "trusted_proxies: []\nlimiters: { rate: { rate: 1/min } }",
        requests: &[
            passes(1, "GET", "/x", &[("x-forwarded-for", "1.1.1.1")]),
            refused(passes(1, "GET", "/x", &[("x-forwarded-for", "2.2.2.2")]), 429, "rate", "60"),
            refused(passes(1, "GET", "/x", &[("forwarded", "for=3.3.3.3")]), 429, "rate", "60"),
        ],
    },
    Case {
        name: "behind a proxy of ours the rightmost address that is not ours counts",
        policy: "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]\nlimiters: { rate: { rate: 1/min } }",
        requests: &[
            passes(1, "GET", "/x", &[("x-forwarded-for", "9.9.9.9, 10.0.0.1")]),
            refused(
                passes(1, "GET", "/x", &[("x-forwarded-for", "1.1.1.1, 9.9.9.9, 10.0.0.2")]),
                429,
                "rate",
                "60",
            ),
            passes(1, "GET", "/x", &[("x-forwarded-for", "8.8.8.8")]),
        ],
    },
    Case {
        name: "odd paths are the same path",
        policy: "limiters: { login: { rate: 1/min, per: global, match: [POST /login] } }",
        requests: &[
            passes(1, "POST", "/login", &[]),
            refused(passes(1, "POST", "/login/", &[]), 429, "login", "60"),
            refused(passes(1, "POST", "//login", &[]), 429, "login", "60"),
            refused(passes(1, "POST", "/%6cogin", &[]), 429, "login", "60"),
            refused(passes(1, "POST", "/x/../login", &[]), 429, "login", "60"),
            refused(passes(1, "POST", "/login;v=1?a=b", &[]), 429, "login", "60"),
            passes(3, "GET", "/login", &[]),
            passes(3, "POST", "/logins", &[]),
        ],
    },
    Case {
        name: "plans, through a proxy that is ours",
        policy: "identify: { caller: [header: x-api-key], plan: [header: x-plan] }\ntrusted_proxies: [127.0.0.0/8]\n\
                 plans: { free: { rate: 1/min }, pro: { rate: 3/min } }\nlimiters: { rate: { rate: plan } }",
        requests: &[
            passes(3, "GET", "/x", PRO),
            refused(passes(1, "GET", "/x", PRO), 429, "rate", "20"),
            passes(1, "GET", "/x", A),
            refused(passes(1, "GET", "/x", A), 429, "rate", "60"),
        ],
    },
    Case {
        name: "several rates, all or nothing, and the one that takes longest is told",
        policy: "identify: { caller: [header: x-api-key] }\nlimiters: { rate: { rate: [2/s, 2/h] }, all: { rate: 3/h, per: global } }",
        requests: &[
            passes(2, "GET", "/x", A),
            refused(passes(1, "GET", "/x", A), 429, "rate", "1800"),
            passes(1, "GET", "/x", B),
            refused(passes(1, "GET", "/x", B), 429, "all", "1200"),
        ],
    },
    Case {
        name: "costs",
        policy: "identify: { caller: [header: x-api-key] }\nlimiters: { units: { rate: 7/h, cost: { header: x-cost, max: 5 } } }",
        requests: &[
            passes(1, "GET", "/x", COSTS),
            passes(1, "GET", "/x", FREE),
            passes(1, "GET", "/x", A),
            refused(passes(1, "GET", "/x", COSTS), 429, "units", "515"),
            passes(2, "GET", "/x", FREE),
            refused(passes(1, "GET", "/x", FREE), 429, "units", "515"),
        ],
    },
    Case {
        name: "a request that costs more than there ever is never passes",
        policy: "limiters: { units: { rate: 5/h, per: global, cost: 6 } }",
        requests: &[refused(passes(1, "GET", "/x", &[]), 429, "units", "")],
    },
    Case {
        name: "dark, off and the lists",
        policy: "identify: { caller: [header: x-api-key] }\nallow: [caller: a]\nblock: [caller: b]\nlimiters:\n\
                 \x20 dark: { rate: 1/h, per: global, mode: dark }\n  off: { rate: 1/h, per: global, mode: off }\n\
                 \x20 rate: { rate: 1/h, per: global }",
        requests: &[
            refused(passes(1, "GET", "/x", B), 403, "block", ""),
            passes(5, "GET", "/x", A),
            passes(1, "GET", "/x", TEST),
            refused(passes(1, "GET", "/x", TEST), 429, "rate", "3600"),
            passes(5, "GET", "/x", A),
        ],
    },
    Case {
        name: "everything dark refuses nobody",
        policy: "mode: dark\nblock: [caller: nobody]\nlimiters: { rate: { rate: 1/h, per: global } }",
        requests: &[passes(5, "GET", "/x", &[])],
    },
    Case {
        name: "a fleet without places for what is not critical",
        policy: "classes: { critical: [/critical], rest: [/*] }\nlimiters: { fleet: { fleet: 5, reserve: 100%, per: global } }",
        requests: &[
            refused(passes(1, "GET", "/x", &[]), 503, "fleet", ""),
            passes(5, "GET", "/critical", &[]),
        ],
    },
];
