//! Every field of a policy file: its name, what it is for, and what may stand there. The reader knows fields from here, and
//! so does the schema for editors.

/// A field of a map.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) shape: Shape,
}

/// What may stand somewhere.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Any text.
    Text,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A whole number.
    Whole,
    /// A whole number from one to another.
    Within(u64, u64),
    /// `50/s`
    Rate,
    /// `28s`
    Time,
    /// The same, and longer than no time.
    SomeTime,
    /// The same, and 100ms or longer.
    Often,
    /// `20%`
    Share,
    /// `512MB`
    Size,
    /// `10.0.0.0/8`
    Network,
    /// `x-api-key`
    Header,
    /// `https://example.com/limits`
    Page,
    /// `memory`, or an address such as `redis://cache:6379`
    Store,
    /// `POST /v1/charges`
    Route,
    /// One or more.
    Some(&'static Shape),
    /// A list.
    List(&'static Shape),
    /// A map whose names are the user's own.
    Named(&'static Shape),
    /// A map with these fields, of which exactly one of the second ones is there.
    OneOf(&'static [Field], &'static [&'static str]),
    /// A map with these fields.
    Map(&'static [Field]),
    /// One of these.
    Either(&'static [Shape]),
    /// A condition, which may hold others.
    Condition,
}

use Shape::{
    Condition, Either, Header, List, Map, Named, Network, Often, OneOf, Page, Rate, Route, Share, Size, Some,
    SomeTime, Store, Text, Time, Whole, Within, Words,
};

const fn field(name: &'static str, about: &'static str, shape: Shape) -> Field {
    Field { name, about, shape }
}

/// One or more.
const SOME: Shape = Within(1, u64::MAX);
/// The most connections to one server: more than one address can have to another.
pub(crate) const MAX_CONNECTIONS: u64 = 65_535;
/// The most places that a fleet can have.
const FLEET: u64 = u32::MAX as u64;

/// What a limiter is one of.
pub(crate) static KINDS: &[&str] = &["rate", "concurrency", "fleet", "workers"];
/// What a source is one of.
pub(crate) static SOURCE_KINDS: &[&str] = &["header", "cookie", "query", "jwt"];
/// What a cost goes by.
pub(crate) static COSTS: &[&str] = &["class", "header", "response_header"];
/// What utilization goes by.
pub(crate) static WORKER_WAYS: &[&str] = &["in_flight", "latency", "response_header"];

pub(crate) static POLICY: &[Field] = &[
    field(
        "store",
        "Where states are kept: `memory`, or the address of a Redis.",
        Either(&[Store, Map(STORE)]),
    ),
    field("mode", "The mode of everything: no limiter is stricter than this.", Words(MODES)),
    field("identify", "Who is calling.", Map(IDENTIFY)),
    field(
        "trusted_proxies",
        "Networks of proxies whose word on the client's address is taken. `[]` if there are none.",
        List(&Network),
    ),
    field("trusted_hops", "How many proxies there are, where their addresses are not known.", Within(1, 32)),
    field(
        "address_header",
        "The header in which proxies tell the client's address: `x-forwarded-for` unless said otherwise, `forwarded`, or \
         another that holds one address.",
        Header,
    ),
    field(
        "path_case",
        "Whether paths match regardless of upper and lower case. Default: `sensitive`. Use `insensitive` if the server \
         treats /LOGIN and /login as the same path.",
        Words(PATH_CASES),
    ),
    field("plans", "Plans that callers may have.", Named(&Map(PLAN))),
    field(
        "classes",
        "Kinds of requests. The first that matches wins; what matches none is of class `other`.",
        Named(&Either(&[List(&Either(&[Route, Condition])), Route, Condition])),
    ),
    field("limiters", "The limiters.", Named(&OneOf(LIMITER, KINDS))),
    field("overrides", "Limits of single callers.", Named(&Named(&Either(&[Text, SEVERAL, Map(QUOTA)])))),
    field("allow", "Who passes without being limited.", List(&Either(&[Network, Map(LISTED)]))),
    field("block", "Who does not pass.", List(&Either(&[Network, Map(LISTED)]))),
    field("answers", "How callers are answered.", Map(ANSWERS)),
    field("gateway", "The gateway.", Map(GATEWAY)),
    field("admin", "The door of those who operate it.", Map(ADMIN)),
];

pub(crate) static PATH_CASES: &[&str] = &["sensitive", "insensitive"];
pub(crate) static MODES: &[&str] = &["enforce", "dark", "off"];

pub(crate) static STORE: &[Field] = &[
    field("url", "`memory`, or the address of a Redis.", Store),
    field(
        "secret",
        "The secret from which names of keys are made; better in the variable TOLLGATE_SECRET.",
        Text,
    ),
    field("prefix", "What all keys begin with.", Text),
    field("deadline", "The longest that a decision may take.", SomeTime),
    field("expected_nodes", "How many processes share the store, until it has told.", SOME),
    field("max_bytes", "The most memory that states may take in this process.", Size),
];

static SOURCE: Shape = Either(&[Words(&["ip", "tls"]), OneOf(SOURCES, SOURCE_KINDS)]);
static PLAN_SOURCE: Shape = Either(&[Words(&["tls", "table"]), OneOf(SOURCES, SOURCE_KINDS)]);

pub(crate) static SOURCES: &[Field] = &[
    field("header", "The value of a header.", Header),
    field("cookie", "The value of a cookie.", Text),
    field("query", "The value of a parameter of the query.", Text),
    field("jwt", "A claim of a token that was verified.", Text),
];

pub(crate) static IDENTIFY: &[Field] = &[
    field("caller", "Where the caller's name is looked for: the first that is present.", Some(&SOURCE)),
    field("plan", "Where the caller's plan is looked for: the first that is present.", Some(&PLAN_SOURCE)),
    field("default_plan", "The plan of those who have none: the first unless said otherwise.", Text),
    field(
        "table",
        "Plans of callers, by their names. `*` stands for anything; a whole name goes before patterns, and of these the one \
         with the longest text.",
        Named(&Text),
    ),
    field("jwt", "How tokens are verified.", Map(JWT)),
    field(
        "ipv6_prefix",
        "How many bits of an IPv6 address tell callers apart: 64 unless said otherwise.",
        Within(32, 128),
    ),
];

pub(crate) static JWT: &[Field] = &[
    field("key_file", "A file with a public key (PEM).", Text),
    field("jwks_file", "A file with a set of keys.", Text),
    field("secret_env", "The variable of the environment that holds a shared secret.", Text),
    field("algorithms", "Algorithms that are accepted.", Some(&Words(JWT_ALGORITHMS))),
    field("header", "The header that carries the token: `authorization` unless said otherwise.", Header),
    field("issuer", "Who must have issued it.", Text),
    field("audience", "For whom it must be.", Text),
];

pub(crate) static JWT_ALGORITHMS: &[&str] = &[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384",
    "EdDSA",
];

static RATES: Shape = Either(&[Words(&["plan"]), SEVERAL]);
static PLAN_RATES: Shape = Either(&[Words(&["unlimited"]), SEVERAL]);
/// One rate, or several.
const SEVERAL: Shape = Some(&Either(&[Rate, Map(ONE_RATE)]));

pub(crate) static ONE_RATE: &[Field] =
    &[field("rate", "So many in so long.", Rate), field("burst", "How many at once.", SOME)];

pub(crate) static PLAN: &[Field] = &[
    field("rate", "For limiters that say `rate: plan`.", PLAN_RATES),
    field("burst", "How many at once, for buckets.", SOME),
    field(
        "concurrency",
        "For limiters that say `concurrency: plan`.",
        Either(&[SOME, Words(&["unlimited"])]),
    ),
];

/// What may differ for single callers, and in a candidate.
pub(crate) static QUOTA: &[Field] = &[
    field("rate", "So many in so long.", PLAN_RATES),
    field("burst", "How many at once, for buckets.", SOME),
    field("concurrency", "So many in progress.", Either(&[SOME, Words(&["unlimited"])])),
    field("fleet", "Places of the whole fleet.", Within(1, FLEET)),
    field("reserve", "The share that is kept for critical requests.", Share),
];

pub(crate) static ALGORITHMS: &[&str] = &[
    "token-bucket",
    "leaky-bucket",
    "leaky-queue",
    "fixed-window",
    "anchored-window",
    "sliding-window",
    "sliding-log",
    "sub-windows",
    "interval-bucket",
];

pub(crate) static PARTS: &[&str] = &["caller", "plan", "path", "method", "host", "ip", "class", "global"];

static PER: Shape = Either(&[Words(PARTS), Map(PER_HEADER)]);
pub(crate) static PER_HEADER: &[Field] = &[field("header", "The value of a header.", Header)];

pub(crate) static LIMITER: &[Field] = &[
    field("rate", "A request rate limiter: so many in so long, or `plan`, or several of them.", RATES),
    field("burst", "How many at once, for buckets: as many as in one period unless said otherwise.", SOME),
    field("algorithm", "How the rate is kept: a token bucket unless said otherwise.", Words(ALGORITHMS)),
    field("windows", "How many sub-windows there are, for `sub-windows`.", SOME),
    field(
        "concurrency",
        "A concurrent requests limiter: so many in progress, or `plan`.",
        Either(&[SOME, Words(&["plan"])]),
    ),
    field(
        "lease",
        "How long a request counts if its process dies; longer ones are renewed. 60s unless said otherwise.",
        SomeTime,
    ),
    field("fleet", "A fleet usage load shedder: places of the whole fleet.", Within(1, FLEET)),
    field("reserve", "The share of the fleet that is kept for critical requests.", Share),
    field(
        "for",
        "The classes that are critical to the fleet: `critical` unless said otherwise.",
        Some(&Text),
    ),
    field(
        "count",
        "Whether critical requests are also held to the whole of the fleet.",
        Words(&["allocation", "total"]),
    ),
    field("workers", "A worker utilization load shedder.", Map(WORKERS)),
    field("per", "Whose bucket: `caller` unless said otherwise, several together, or `global`.", Some(&PER)),
    field(
        "match",
        "Which requests it is for: all unless said otherwise.",
        Some(&Either(&[Route, Condition])),
    ),
    field(
        "cost",
        "What a request costs: 1 unless said otherwise.",
        Either(&[SOME, Words(&["given"]), OneOf(COST, COSTS)]),
    ),
    field("mode", "What becomes of what it decides.", Words(MODES)),
    field("candidate", "A second threshold that is only counted.", Either(&[SEVERAL, SOME, Map(QUOTA)])),
    field(
        "sample",
        "The share of buckets (callers, unless `per` says otherwise) for which it is enforced; for the others it is dark.",
        Share,
    ),
    field(
        "on_store_failure",
        "What it does while the store is away: lets requests pass (open, the default), rejects them (closed), or decides by this process's share of the limit (local).",
        Words(FAILURES),
    ),
];

pub(crate) static FAILURES: &[&str] = &["open", "closed", "local"];

pub(crate) static WORKERS: &[Field] = &[
    field("good", "Below this utilization the worker recovers.", Share),
    field("bad", "Above this utilization it sheds more and more.", Share),
    field("grace", "How long a full overload is borne before anything is shed.", Time),
    field("full", "How long it then takes until everything that may be shed is.", SomeTime),
    field("every", "How often utilization is looked at: 100ms or more.", Often),
    field(
        "source",
        "Where utilization is read.",
        Either(&[Words(WORKER_SOURCES), OneOf(WORKER_SOURCE, WORKER_WAYS)]),
    ),
    field(
        "shed",
        "Classes in the order in which they are shed; those that are not here never are.",
        List(&Text),
    ),
];

pub(crate) static WORKER_SOURCES: &[&str] = &["cpu", "cgroup", "pressure", "upstreams", "reported"];

pub(crate) static WORKER_SOURCE: &[Field] = &[
    field("in_flight", "Requests in progress, against so many that this process can work on at once.", SOME),
    field("latency", "How long answers take, against how long they should.", SomeTime),
    field(
        "response_header",
        "The header of the protected service's answers that tells its utilization.",
        Header,
    ),
];

pub(crate) static COST: &[Field] = &[
    field("class", "Costs by class.", Named(&Whole)),
    field("header", "The header of the request that says what it costs.", Header),
    field("response_header", "The header of the answer that says what it has cost.", Header),
    field("otherwise", "What requests cost of which nothing is said, or until it is known.", Whole),
    field("max", "The most that a header is believed.", SOME),
];

pub(crate) static CONDITION: &[Field] = &[
    field("method", "Methods. GET covers HEAD.", Some(&Text)),
    field(
        "path",
        "Patterns of paths: `*` and `{name}` stand for a segment, `*` at the end for all that follows.",
        Some(&Text),
    ),
    field(
        "path_case",
        "Whether the paths of this condition match regardless of upper and lower case. Default: as in `path_case` at the top.",
        Words(PATH_CASES),
    ),
    field("header", "Headers and what they must be like; `*` stands for anything.", Named(&Some(&Text))),
    field("host", "Names of hosts; `*` stands for anything.", Some(&Text)),
    field("class", "Classes.", Some(&Text)),
    field("plan", "Plans.", Some(&Text)),
    field("network", "Networks of clients.", Some(&Network)),
    field("not", "What must not be so.", Some(&Either(&[Route, Condition]))),
];

pub(crate) static LISTED: &[Field] =
    &[field("caller", "A caller, by its name.", Text), field("network", "A network of clients.", Network)];

pub(crate) static HEADER_STYLES: &[&str] = &["ietf-11", "draft-7", "draft-6", "x-ratelimit", "envoy", "off"];

pub(crate) static ANSWERS: &[Field] = &[
    field("headers", "How callers are told how they stand.", Words(HEADER_STYLES)),
    field("docs_url", "Where callers can read about limits.", Page),
    field(
        "retry_jitter",
        "By how much Retry-After may be longer than it must be, so that callers do not come back together.",
        Share,
    ),
];

pub(crate) static GATEWAY: &[Field] = &[
    field(
        "listen",
        "Where the gateway listens: 127.0.0.1:8080 unless said otherwise; `off` if it does not.",
        Text,
    ),
    field("upstream", "The servers that requests are passed on to.", Some(&Text)),
    field(
        "upstreams",
        "Servers for some requests. The first whose `match` holds is taken, and `upstream` for the rest.",
        Named(&Map(UPSTREAM)),
    ),
    field("tls", "The certificate of the gateway.", Map(GATEWAY_TLS)),
    field(
        "proxy_protocol",
        "Whether connections begin with the PROXY protocol. It is believed of `trusted_proxies` only.",
        Words(YES_OR_NO),
    ),
    field(
        "encoded_slashes",
        "Whether paths may have %2F, which some servers read as a slash and others do not: no unless said otherwise.",
        Words(YES_OR_NO),
    ),
    field(
        "allow_trace",
        "Whether TRACE requests are forwarded: no by default, and they are answered 405.",
        Words(YES_OR_NO),
    ),
    field(
        "add_headers",
        "Headers that are added to forwarded requests besides X-Forwarded-For, -Proto and -Host: `x-real-ip`, `via`.",
        Some(&Words(ADDED_HEADERS)),
    ),
    field(
        "max_upstream_connections",
        "The most connections to each server: 1024 by default, and fewer if the limit of open files is low.",
        Within(1, MAX_CONNECTIONS),
    ),
    field(
        "max_upstream_queue",
        "The most requests that wait for a connection to each server: 1024 by default. More are answered 503.",
        Whole,
    ),
    field("timeout", "How long the gateway waits for an answer: 60s unless said otherwise.", SomeTime),
    field("timeouts", "How long the gateway waits for what.", Map(TIMEOUTS)),
    field("max_head", "The largest head of a request: 64KB unless said otherwise.", Size),
    field("max_body", "The largest body of a request: as large as it likes unless said otherwise.", Size),
    field(
        "min_rate",
        "Bytes a second that clients send and take at least, in the long run: 500 unless said otherwise.",
        Size,
    ),
    field(
        "access_log",
        "Where the access log goes: `stdout`, a file, or `off`, as it is unless said otherwise.",
        Text,
    ),
    field("log", "What is logged: `all` requests, or those that were `refused` or failed.", Words(LOGGED)),
    field(
        "log_addresses",
        "How logs show addresses of clients: by a keyed `hash`, unless said otherwise, or in `full`.",
        Words(LOGGED_ADDRESSES),
    ),
];

pub(crate) static YES_OR_NO: &[&str] = &["yes", "no", "true", "false", "on", "off"];
pub(crate) static ADDED_HEADERS: &[&str] = &["x-real-ip", "via"];
pub(crate) static LOGGED: &[&str] = &["all", "refused"];
pub(crate) static LOGGED_ADDRESSES: &[&str] = &["hash", "full"];
pub(crate) static PROTOCOLS: &[&str] = &["auto", "http1", "http2"];

pub(crate) static UPSTREAM: &[Field] = &[
    field("servers", "Servers that take turns: http://10.0.0.5:9000.", Some(&Text)),
    field(
        "match",
        "Which requests are for them: all unless said otherwise.",
        Some(&Either(&[Route, Condition])),
    ),
    field(
        "protocol",
        "What is spoken with them: `http1`, `http2`, or `auto`, which is HTTP/2 for gRPC and where TLS agrees on it.",
        Words(PROTOCOLS),
    ),
    field(
        "health",
        "The path that is asked for to find out whether a server is well.",
        Either(&[Text, Map(HEALTH)]),
    ),
    field(
        "ca",
        "A file with those who sign certificates of the servers (PEM), in place of those whom the machine trusts.",
        Text,
    ),
    field("workers", "How many requests each server can work on at once, for `source: upstreams`.", SOME),
    field(
        "max_connections",
        "The most connections to each of its servers, in place of `max_upstream_connections`.",
        Within(1, MAX_CONNECTIONS),
    ),
    field(
        "max_queue",
        "The most requests that wait for a connection to each of its servers, in place of `max_upstream_queue`.",
        Whole,
    ),
];

pub(crate) static HEALTH: &[Field] = &[
    field("path", "What is asked for; an answer from 200 to 399 is a good one.", Text),
    field("every", "How often: 5s unless said otherwise.", SomeTime),
    field("timeout", "How long an answer may take: 2s unless said otherwise.", SomeTime),
];

pub(crate) static GATEWAY_TLS: &[Field] = &[
    field("certificate", "A file with the chain of certificates (PEM).", Text),
    field("key", "A file with the private key (PEM).", Text),
    field(
        "client_ca",
        "A file with those who sign certificates of clients (PEM). Clients then need one.",
        Text,
    ),
];

pub(crate) static TIMEOUTS: &[Field] = &[
    field("head", "For the head of a request: 10s unless said otherwise.", SomeTime),
    field(
        "body",
        "For more of the body of a request, and for clients to take answers: 30s unless said otherwise.",
        SomeTime,
    ),
    field("connect", "For a connection with a server: 3s unless said otherwise.", SomeTime),
    field(
        "queue",
        "For a connection to become free, when all connections to a server are in use: 3s by default.",
        SomeTime,
    ),
    field("answer", "For the head of an answer, and for more of it: 60s unless said otherwise.", SomeTime),
    field(
        "whole",
        "For the whole body of a request, and for the whole of an answer: as long as they take unless said otherwise.",
        SomeTime,
    ),
    field("idle", "For the next request on a connection: 75s unless said otherwise.", SomeTime),
    field(
        "notice",
        "For load balancers to hear that it is not ready any more, before no more connections are taken: 0s unless said otherwise.",
        Time,
    ),
    field(
        "drain",
        "For requests in progress when the gateway is told to end: 30s unless said otherwise.",
        Time,
    ),
];

pub(crate) static ADMIN: &[Field] = &[field(
    "listen",
    "Where the admin door listens: 127.0.0.1:8083 unless said otherwise; `off` if it does not.",
    Text,
)];

/// Their names.
pub(crate) fn names(fields: &'static [Field]) -> impl Iterator<Item = &'static str> + Clone {
    fields.iter().map(|field| field.name)
}
