//! `tollgate run`: opens the doors, and closes them well.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate::{Companion, Limiter, Mode, Policy, PolicyError, PolicyFile};
use tollgate_core::policy::{Kind, Server, StoreChoice, WorkerPolicy};
use tollgate_core::worker::Source;

use crate::access_log::AccessLog;
use crate::admin::{self, Admin};
use crate::caller_labels::CallerLabels;
use crate::gateway::{self, Certificates, Gateway};
use crate::settings::{self, Door, RunArguments, USUAL_ADMIN};
use crate::store::AnyStore;
use crate::systemd::{self, Inherited};
use crate::{demo_api, upstreams_watch};

/// What is said on the command line and holds for every policy that is loaded.
#[derive(Clone, Debug, Default)]
struct Overruling {
    servers: Option<Vec<Server>>,
    /// The address of the store; none is memory.
    store: Option<Option<String>>,
    /// Whether it is said where the access log goes.
    has_log: bool,
}

impl Overruling {
    fn apply(&self, policy: Policy) -> Policy {
        let policy = match &self.servers {
            Some(servers) => policy.with_servers(servers.clone()),
            None => policy,
        };
        match &self.store {
            Some(url) => {
                let store = StoreChoice { url: url.clone(), ..policy.store().clone() };
                policy.with_store(store)
            }
            None => policy,
        }
    }
}

/// The policy at start, and where it is from.
struct Started {
    policy: Policy,
    file: Option<PolicyFile>,
    path: Option<PathBuf>,
    /// What is wrong with the file, if it is of no use: everything passes until it is mended.
    wrong: Option<PolicyError>,
    /// Whether nothing of it could be read, not even which store it wants and whether there is TLS.
    is_blind: bool,
    is_demo: bool,
}

impl Started {
    fn read(arguments: &RunArguments) -> anyhow::Result<Self> {
        let path = arguments.policy.clone().or_else(settings::policy_path);
        let Some(path) = path else {
            let (policy, _) = Policy::read(demo_api::POLICY).context("the policy of the demonstration")?;
            return Ok(Self { policy, file: None, path: None, wrong: None, is_blind: false, is_demo: true });
        };
        let path = std::path::absolute(path)?;
        match PolicyFile::read(&path) {
            Ok(file) => Ok(Self {
                policy: file.policy().clone(),
                file: Some(file),
                path: Some(path),
                wrong: None,
                is_blind: false,
                is_demo: false,
            }),
            // A server that does not start is worse than one that limits nothing.
            Err(wrong) => {
                let nothing = || Policy::read("limiters: {}").map(|(policy, _)| policy);
                let salvaged = PolicyFile::salvage(&path);
                let is_blind = salvaged.is_none();
                let policy = match salvaged {
                    Some(policy) => policy,
                    None => nothing().context("a policy without limiters")?,
                };
                Ok(Self {
                    policy,
                    file: None,
                    path: Some(path),
                    wrong: Some(wrong),
                    is_blind,
                    is_demo: false,
                })
            }
        }
    }
}

/// Runs until it is told to end.
pub fn run(arguments: &RunArguments) -> anyhow::Result<()> {
    let wanted = settings::variable("TOLLGATE_LOG").unwrap_or_else(|| "info".to_owned());
    // A word that is no level would be taken for the name of a module, and nothing would be told any more.
    let is_level = |word: &str| word.contains('=') || word.parse::<tracing::Level>().is_ok() || word == "off";
    if let Some(word) = wanted.split(',').find(|word| !is_level(word.trim())) {
        anyhow::bail!(
            "TOLLGATE_LOG: {word:?} is no level: there are error, warn, info, debug, trace and off"
        );
    }
    let filter = tracing_subscriber::EnvFilter::new(wanted);
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .try_init();
    // Before there are threads: variables are taken out of the environment.
    let inherited = Inherited::take()?;
    // Doors are served by the gateway's own threads; here is what looks after them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ended = runtime.block_on(serve(arguments, inherited));
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

async fn serve(arguments: &RunArguments, inherited: Inherited) -> anyhow::Result<()> {
    let mut ends = Ends::new()?;
    let started = Started::read(arguments)?;
    let overruling = overruling(arguments, started.is_demo).await?;
    let policy = overruling.apply(started.policy);
    let gateway_door = Door::choose(
        "gateway",
        "--gateway",
        arguments.gateway.as_deref(),
        policy.gateway().listen.as_deref(),
        "127.0.0.1:8080",
    )?
    .opened_by(inherited.gateway.as_ref())?;
    let admin_door = Door::choose(
        "admin door",
        "--admin",
        arguments.admin.as_deref(),
        policy.admin_listen(),
        USUAL_ADMIN,
    )?
    .opened_by(inherited.admin.as_ref())?;
    admin::check(&admin_door, arguments.token.as_deref())?;
    if gateway_door.address.is_none() && admin_door.address.is_none() {
        anyhow::bail!("both doors are off: there is nothing to do. Open one with --gateway or --admin");
    }
    let one = gateway_door.address.filter(|one| one.port() != 0 && admin_door.address == Some(*one));
    if let Some(gateway) = one {
        anyhow::bail!(
            "the gateway and the admin door cannot both listen at {gateway}: move one with --gateway ADDRESS or --admin ADDRESS"
        );
    }
    if let Err(problem) = check_upstreams(&policy, gateway_door.address) {
        match &started.wrong {
            Some(wrong) => anyhow::bail!("{wrong}\n\nand so this is not known either: {problem}"),
            None => anyhow::bail!("{problem}"),
        }
    }
    let folder = started.path.as_deref().and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
    let certificates = Certificates::read(policy.gateway(), &folder)?;
    // Before anything else is begun: whoever cannot have his door should know at once.
    let gateway_listener = gateway_door.open(inherited.gateway).await?;
    let admin_listener = admin_door.open(inherited.admin).await?;
    let secret = settings::variable("TOLLGATE_SECRET");
    let label_secret = secret.as_deref().or(policy.store().secret.as_deref());
    let labels = CallerLabels::new(label_secret, policy.gateway().log_full_addresses);
    let store = AnyStore::open(policy.store(), secret).context("the store")?;
    let log = match arguments.access_log.as_deref().or(policy.gateway().access_log.as_deref()) {
        None | Some("off") => None,
        Some(to) => Some(
            AccessLog::open(to, policy.gateway().log_only_refused, labels.clone())
                .with_context(|| format!("the access log cannot be written to {to}"))?,
        ),
    };
    let builder = Limiter::builder().store(store);
    let builder = match started.file {
        Some(file) => builder.read_file(file.with_policy(policy.clone())),
        None => builder.read_policy(policy.clone()),
    };
    let limiter = builder.build()?;
    let threads = arguments
        .threads
        .map(usize::from)
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let gateway = Gateway::start(
        limiter.clone(),
        policy.clone(),
        certificates,
        log,
        labels,
        threads.unwrap_or(1).clamp(1, 1024),
    )?;
    let shared = Arc::clone(&gateway.shared);
    limiter.set_companion(Follower {
        shared: Arc::clone(&shared),
        overruling,
        store: policy.store().clone(),
        is_blind: started.is_blind,
        gateway: gateway_door.address,
    });
    if let (Some(path), Some(_)) = (&started.path, &started.wrong) {
        // It is told below, and counted here: whoever watches the file need not find it out again.
        let _ = limiter.reload_file(path);
    }
    let watcher = started.path.as_ref().map(|path| limiter.watch_file(path)).transpose()?;
    tokio::spawn(upstreams_watch::report(Arc::downgrade(&shared)));

    let admin = Admin::new(limiter.clone(), Arc::clone(&shared), arguments.token.clone());
    let is_ready = admin.readiness();
    if let Some(listener) = admin_listener {
        tokio::spawn(admin.serve(listener));
    }
    let told = Told {
        policy: &policy,
        path: started.path.as_deref(),
        wrong: started.wrong.as_ref(),
        is_demo: started.is_demo && arguments.upstream.is_empty(),
        gateway: &gateway_door,
        admin: &admin_door,
        limiter: &limiter,
    };
    told.write(&mut io::stderr().lock())?;
    let path = started.path.as_deref();
    systemd::ready(match started.wrong {
        Some(_) => "THE POLICY IS OF NO USE: everything passes",
        None => "at work",
    });
    tokio::spawn(systemd::keep_saying_alive(gateway.runtimes()));
    let mut is_hurried = false;
    match gateway_listener {
        Some(listener) => {
            let mut accepting = pin!(gateway.accept(listener));
            tokio::select! {
                () = accepting.as_mut() => {}
                () = ends.told_to_end(|| reload(&limiter, path)) => {
                    // Whoever sends requests here is told, and has time to hear it.
                    is_ready.end();
                    systemd::stopping("ending: requests in progress are answered");
                    let notice = Duration::from(shared.site.load().policy.gateway().timeouts.notice);
                    if !notice.is_zero() {
                        tracing::info!("ending: not ready any more; connections are taken for another {notice:?}");
                        shared.give_notice();
                        tokio::select! {
                            () = accepting.as_mut() => {}
                            () = tokio::time::sleep(notice) => {}
                            () = ends.told_to_end(|| ()) => is_hurried = true,
                        }
                    }
                    shared.drain();
                    accepting.await;
                }
            }
        }
        None => {
            ends.told_to_end(|| reload(&limiter, path)).await;
            systemd::stopping("ending");
        }
    }
    drop(watcher);
    is_ready.end();
    let drain = Duration::from(shared.site.load().policy.gateway().timeouts.drain);
    let drain = if is_hurried { Duration::ZERO } else { drain };
    match drain {
        Duration::ZERO => tracing::info!("ending at once: requests in progress are broken off"),
        drain => tracing::info!("ending: no more connections are taken; requests in progress have {drain:?}"),
    }
    let left = gateway.drain(drain, ends.told_to_end(|| ())).await;
    if let AnyStore::Shared(store) = limiter.store() {
        let _ = tokio::time::timeout(Duration::from_secs(1), store.shared().close()).await;
    }
    match left {
        0 => tracing::info!("ended; every request was answered"),
        left => tracing::warn!("ended; {left} requests had no whole answer yet"),
    }
    Ok(())
}

/// Whether there is somebody to pass requests on to, and not the gateway itself.
fn check_upstreams(policy: &Policy, gateway: Option<SocketAddr>) -> Result<(), String> {
    let Some(gateway) = gateway else { return Ok(()) };
    let servers: Vec<_> = policy.gateway().upstreams.iter().flat_map(|upstream| &upstream.servers).collect();
    if servers.is_empty() {
        return Err("whom shall requests be passed on to? Say --upstream http://127.0.0.1:9000, or `gateway: { upstream: ... }` in the policy; or close the gateway with --gateway off".to_owned());
    }
    // Who asks for no address in particular comes out here, too.
    let is_here = |ip: IpAddr| {
        let is_of_machine = |ip: IpAddr| ip.is_unspecified() || ip.is_loopback();
        ip == gateway.ip()
            || ip.is_unspecified() && is_of_machine(gateway.ip())
            || gateway.ip().is_unspecified() && is_of_machine(ip)
    };
    let is_here = |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(is_here);
    match servers.iter().find(|server| server.port == gateway.port() && is_here(&server.host)) {
        Some(server) => {
            Err(format!("{server} is the gateway itself ({gateway}): requests would go round for ever"))
        }
        None => Ok(()),
    }
}

async fn overruling(arguments: &RunArguments, is_demo: bool) -> anyhow::Result<Overruling> {
    let mut servers = settings::upstreams(&arguments.upstream)?;
    if is_demo && servers.is_empty() {
        let address = demo_api::start().await.context("the demonstration's API cannot be started")?;
        servers = settings::upstreams(&[format!("http://{address}")])?;
    }
    let servers = (!servers.is_empty()).then_some(servers);
    let store = arguments.store.clone().map(|url| Some(url).filter(|url| url != "memory"));
    if let Some(Some(url)) = &store {
        tollgate_redis::RedisStore::check_address(url).context("--store")?;
    }
    Ok(Overruling { servers, store, has_log: arguments.access_log.is_some() })
}

/// Loads the policy again because somebody has asked for it.
fn reload(limiter: &Limiter<AnyStore>, path: Option<&Path>) {
    let Some(path) = path else {
        return tracing::warn!("there is no policy file that could be loaded again");
    };
    systemd::reloading();
    let loaded = limiter.reload_file(path);
    systemd::ready(match &loaded {
        Ok(_) => "at work",
        Err(_) => "the policy was not loaded, the one before it goes on",
    });
    match loaded {
        Ok(unwise) if unwise.is_empty() => tracing::info!(path = %path.display(), "the policy was loaded"),
        Ok(unwise) => {
            tracing::warn!(path = %path.display(), "the policy was loaded, and is unwise:\n{unwise}")
        }
        Err(error) => {
            tracing::error!(path = %path.display(), "the policy was not loaded, the one before it goes on: {error}");
        }
    }
}

/// The gateway follows the policies of its limiter.
struct Follower {
    shared: Arc<gateway::Shared>,
    overruling: Overruling,
    store: StoreChoice,
    /// Whether the store was chosen without a policy.
    is_blind: bool,
    gateway: Option<SocketAddr>,
}

impl Companion for Follower {
    fn prepare(&self, policy: &Policy, folder: &Path) -> Result<Box<dyn FnOnce() + Send>, String> {
        let policy = self.overruling.apply(policy.clone());
        let before = self.shared.site.load();
        if *policy.store() != self.store && self.is_blind && before.policy.limiters().is_empty() {
            return Err("the file wants a store that was not known at start, because nothing of it could be read then. START AGAIN: until then everything passes".to_owned());
        }
        if *policy.store() != self.store {
            return Err("`store` has changed: states cannot be moved while they are used. Start again to use another store".to_owned());
        }
        check_upstreams(&policy, self.gateway)?;
        let moves = |one: Option<&str>, other: Option<&str>| one != other;
        if moves(policy.gateway().listen.as_deref(), before.policy.gateway().listen.as_deref())
            || moves(policy.admin_listen(), before.policy.admin_listen())
        {
            tracing::warn!("`listen` has changed: doors move only with a new start");
        }
        let logs = |policy: &Policy| {
            let gateway = policy.gateway();
            let access_log = gateway.access_log.clone().filter(|_| !self.overruling.has_log);
            (access_log, gateway.log_only_refused, gateway.log_full_addresses)
        };
        if logs(&policy) != logs(&before.policy) {
            tracing::warn!(
                "`access_log`, `log` or `log_addresses` has changed: logs stay as they are until a restart"
            );
        }
        let certificates = Certificates::read(policy.gateway(), folder).map_err(|error| error.to_string())?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(move || shared.put_to_work(policy, certificates)))
    }
}

/// Signals that say what to do.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Ends {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until somebody says that it is over. Whoever only wants the policy loaded again gets that.
    async fn told_to_end(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => reload(),
            }
        }
    }
}

/// Where a shedder has its utilization from, in a few words.
fn source_of(worker: &WorkerPolicy) -> String {
    match (&worker.source, &worker.reported_in) {
        _ if worker.watches_upstreams => "requests in progress at the upstreams".to_owned(),
        (Source::InFlight { workers }, _) => format!("requests in progress, {workers} of which are all"),
        (Source::Cpu, _) => "the processors of this machine".to_owned(),
        (Source::Cgroup, _) => "the processors of this container".to_owned(),
        (Source::Pressure, _) => "work that waits for processors (PSI)".to_owned(),
        (Source::Latency { target }, _) => format!("latency, of which {target} is too much"),
        (Source::Reported { .. }, Some(header)) => format!("the header {header} of answers"),
        (Source::Reported { .. }, None) => "what is reported to the admin door".to_owned(),
    }
}

/// What is told at start.
struct Told<'t> {
    policy: &'t Policy,
    path: Option<&'t Path>,
    wrong: Option<&'t PolicyError>,
    is_demo: bool,
    gateway: &'t Door,
    admin: &'t Door,
    limiter: &'t Limiter<AnyStore>,
}

impl Told<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        if let Some(wrong) = self.wrong {
            writeln!(out, "\n{wrong}\n")?;
            writeln!(
                out,
                "  THE POLICY IS OF NO USE: everything passes. It is loaded as soon as the file is mended.\n"
            )?;
        }
        let shown = match self.path {
            Some(path) => path.display().to_string(),
            None => format!("the demonstration's ({})", demo_api::POLICY_FILE),
        };
        writeln!(out, "  policy    {shown}")?;
        let store = match self.limiter.store() {
            AnyStore::Memory(_) => "memory of this process".to_owned(),
            AnyStore::Shared(store) => store.shared().address().to_owned(),
        };
        writeln!(out, "  store     {store}")?;
        let scheme = if self.policy.gateway().tls.is_some() { "https" } else { "http" };
        match self.gateway.address {
            Some(address) => writeln!(out, "  gateway   {scheme}://{address}")?,
            None => writeln!(out, "  gateway   off")?,
        }
        for upstream in &self.policy.gateway().upstreams {
            let servers: Vec<String> = upstream.servers.iter().map(ToString::to_string).collect();
            let what = if self.is_demo && servers.len() == 1 { " (the demonstration's API)" } else { "" };
            writeln!(out, "  upstream  {}: {}{what}", upstream.name, servers.join(", "))?;
        }
        match self.admin.address {
            Some(address) => {
                let is_usual = address.to_string() == USUAL_ADMIN;
                let flag = if is_usual { String::new() } else { format!(" --admin {address}") };
                writeln!(out, "  admin     http://{address}/metrics, /readyz; `tollgate status{flag}`")?
            }
            None => writeln!(out, "  admin     off")?,
        }
        for (name, mode) in self.limiter.modes() {
            let kept = self.policy.limiters().iter().find(|limiter| limiter.name == name);
            let sheds = kept.is_some_and(|limiter| limiter.kind.reason().status() == 503);
            let mut what = if sheds { "503" } else { "429" }.to_owned();
            if let Some(Kind::Worker(worker)) = kept.map(|limiter| &limiter.kind) {
                what += &format!(", utilization from {}", source_of(worker));
            }
            let share = kept.and_then(|limiter| limiter.sample_percent());
            match mode {
                Mode::Enforce => {
                    let only = share.map_or(String::new(), |share| {
                        format!(": ONLY FOR {share} % OF ITS BUCKETS, the others are watched")
                    });
                    writeln!(out, "  limiter   {name} ({what}){only}")?;
                }
                Mode::Dark => writeln!(out, "  limiter   {name}: DARK, it refuses nobody")?,
                Mode::Off => writeln!(out, "  limiter   {name}: OFF")?,
            }
        }
        if let (true, Some(mut address)) = (self.is_demo, self.gateway.address) {
            // Where everybody can ask, so can whoever is here.
            if address.ip().is_unspecified() {
                address.set_ip(if address.is_ipv4() {
                    Ipv4Addr::LOCALHOST.into()
                } else {
                    Ipv6Addr::LOCALHOST.into()
                });
            }
            writeln!(
                out,
                "
Try it in another terminal:

  # an answer, and how the limit stands
  curl -i http://{address}/v1/charges -H 'x-api-key: sk_1'

  # more than the 50 a second of the free plan: 429, why, and when to come back
  curl -si 'http://{address}/v1/charges?n=[1-60]' -H 'x-api-key: sk_2' | tail -n 12

  # four callers with 20 slow requests each take all that is not kept for critical ones: 503
  (for n in $(seq 80); do curl -s 'http://{address}/v1/reports?ms=5000' -H \"x-api-key: $((n % 4))\" -o /dev/null & done); sleep 1; curl -i http://{address}/v1/charges -H 'x-api-key: sk_3'

  # and this one, which is critical, passes meanwhile
  curl -i -X POST http://{address}/v1/charges -H 'x-api-key: sk_3'

To protect your own API: tollgate run --upstream http://127.0.0.1:9000 --policy tollgate.yaml
"
            )?;
        }
        out.flush()
    }
}
