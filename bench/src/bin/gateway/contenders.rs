//! Who is measured, and how each is set up: see `conf`.

use tollgate_testkit::free_port;
use tollgate_testkit::http::Client;

use crate::Failure;
use crate::server::{Server, Start};
use crate::tools::Tools;
use crate::wrk::KEY;

pub const DIRECT: &str = "the server itself";
pub const NGINX: &str = "nginx, `limit_req`";
pub const NGINX_REFUSING: &str = "nginx, everything refused";
pub const HAPROXY: &str = "HAProxy, stick table";
pub const HAPROXY_REFUSING: &str = "HAProxy, everything refused";
pub const ENVOY: &str = "Envoy, local rate limit";
pub const OURS: &str = "tollgate, four limiters";
pub const OURS_ALONE: &str = "tollgate, `limiters: {}`";
pub const OURS_REFUSING: &str = "tollgate, everything refused";

/// The file of tollgate's policy.
pub const POLICY: &str = "tollgate.yaml";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    Nginx,
    Haproxy,
    Envoy,
    Tollgate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    None,
    /// Nobody reaches it.
    High,
    /// One request an hour.
    Low,
}

pub struct Contender {
    pub name: &'static str,
    proxy: Option<Proxy>,
    limit: Limit,
}

pub const ALL: [Contender; 9] = [
    Contender { name: DIRECT, proxy: None, limit: Limit::None },
    Contender { name: NGINX, proxy: Some(Proxy::Nginx), limit: Limit::High },
    Contender { name: NGINX_REFUSING, proxy: Some(Proxy::Nginx), limit: Limit::Low },
    Contender { name: HAPROXY, proxy: Some(Proxy::Haproxy), limit: Limit::High },
    Contender { name: HAPROXY_REFUSING, proxy: Some(Proxy::Haproxy), limit: Limit::Low },
    Contender { name: ENVOY, proxy: Some(Proxy::Envoy), limit: Limit::High },
    Contender { name: OURS, proxy: Some(Proxy::Tollgate), limit: Limit::High },
    Contender { name: OURS_ALONE, proxy: Some(Proxy::Tollgate), limit: Limit::None },
    Contender { name: OURS_REFUSING, proxy: Some(Proxy::Tollgate), limit: Limit::Low },
];

impl Contender {
    /// Whether all that it answers is a refusal.
    pub fn refuses(&self) -> bool {
        self.limit == Limit::Low
    }

    /// Starts it, after it has shown that its limit is one. Nobody is started where there is no proxy.
    pub fn start(&self, tools: &Tools, upstream: u16, threads: usize) -> Result<Option<Server>, Failure> {
        let Some(proxy) = self.proxy else { return Ok(None) };
        let start = |limit| proxy.start(tools, limit, upstream, threads);
        let in_context = |failure: Failure| format!("{}: {failure}", self.name);
        if self.limit != Limit::None {
            let server = start(Limit::Low).map_err(in_context)?;
            refuses_what_is_too_much(&server)
                .map_err(|failure| format!("{}: {failure}:\n{}", self.name, server.said()))?;
        }
        let server = start(self.limit).map_err(in_context)?;
        Ok(Some(server))
    }
}

/// The server behind all proxies.
pub fn upstream(tools: &Tools) -> Result<Server, Failure> {
    let port = free_port();
    let text = filled(include_str!("conf/upstream.conf"), &[("port", port.to_string())]);
    Server::start(&nginx(tools, "upstream.conf", text, port))
}

/// Tollgate's policy.
pub fn policy(limit: Limit) -> String {
    let (template, rate) = match limit {
        Limit::None => (include_str!("conf/tollgate-none.yaml"), ""),
        Limit::High => (include_str!("conf/tollgate.yaml"), "1000000/s"),
        Limit::Low => (include_str!("conf/tollgate.yaml"), "1/h"),
    };
    filled(template, &[("rate", rate.to_owned())])
}

impl Proxy {
    pub fn start(
        self,
        tools: &Tools,
        limit: Limit,
        upstream: u16,
        threads: usize,
    ) -> Result<Server, Failure> {
        let port = free_port();
        let is_low = limit == Limit::Low;
        let choose = |low: &str, high: &str| if is_low { low } else { high }.to_owned();
        let values = [
            ("port", port.to_string()),
            ("upstream", upstream.to_string()),
            ("threads", threads.to_string()),
        ];
        let fill = |template, more: &[(&str, String)]| filled(&filled(template, &values), more);
        match self {
            Self::Nginx => {
                let rate = [("rate", choose("1r/m", "1000000r/s")), ("burst", choose("1", "1000000"))];
                let text = fill(include_str!("conf/nginx.conf"), &rate);
                Server::start(&nginx(tools, "nginx.conf", text, port))
            }
            Self::Haproxy => {
                let rate = [("requests", choose("1", "1000000")), ("period", choose("1h", "1s"))];
                Server::start(&Start {
                    program: &tools.haproxy,
                    arguments: words("-db -f haproxy.cfg"),
                    file: "haproxy.cfg",
                    text: fill(include_str!("conf/haproxy.cfg"), &rate),
                    port,
                })
            }
            Self::Envoy => {
                let rate = [("requests", choose("1", "1000000")), ("period", choose("3600s", "1s"))];
                let arguments =
                    format!("-c envoy.yaml --concurrency {threads} --disable-hot-restart --log-level error");
                Server::start(&Start {
                    program: &tools.envoy,
                    arguments: words(&arguments),
                    file: "envoy.yaml",
                    text: fill(include_str!("conf/envoy.yaml"), &rate),
                    port,
                })
            }
            Self::Tollgate => {
                let arguments = format!(
                    "run --policy {POLICY} --gateway 127.0.0.1:{port} --admin off \
                     --upstream http://127.0.0.1:{upstream} --threads {threads}"
                );
                Server::start(&Start {
                    program: &tools.tollgate,
                    arguments: words(&arguments),
                    file: POLICY,
                    text: policy(limit),
                    port,
                })
            }
        }
    }
}

fn nginx<'t>(tools: &'t Tools, file: &'t str, text: String, port: u16) -> Start<'t> {
    // Its folder is a prefix to every path, and has to end with a slash.
    Start { program: &tools.nginx, arguments: words(&format!("-p ./ -e stderr -c {file}")), file, text, port }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Puts values in the place of `@name@`.
fn filled(template: &str, values: &[(&str, String)]) -> String {
    let fill = |text: String, (name, value): &(&str, String)| text.replace(&format!("@{name}@"), value);
    values.iter().fold(template.to_owned(), fill)
}

/// A limit of one request is felt by those that follow.
fn refuses_what_is_too_much(server: &Server) -> Result<(), Failure> {
    const ENOUGH: usize = 5;
    let mut client = Client::try_connect(server.address())?;
    let mut ask = || client.try_get("/v1/charges", &[KEY]).map(|answer| answer.status);
    let first = ask()?;
    if first != 200 {
        return Err(format!("the first request was answered with {first}").into());
    }
    for _ in 0..ENOUGH {
        match ask()? {
            200 => {}
            429 => return Ok(()),
            other => return Err(format!("one request too many was answered with {other}").into()),
        }
    }
    Err(format!("{ENOUGH} requests too many were all answered with 200").into())
}
