//! `tollgate check`: everything that is wrong with a policy file, before anybody depends on it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tollgate::{Failsafe, JwtTokens, Limiter, MemoryStore, OnFailure, PolicyError};
use tollgate_core::policy::{Kind, Mistakes, NoTokens, Policy, Surroundings, schema};
use tollgate_redis::RedisStore;

use crate::gateway::Certificates;

/// Validates a file, or what comes from `input` if its name is `-`. What is wrong goes to `err`, one line about what is there
/// to `out`. False if the file cannot be used; an error if it cannot even be read.
pub fn run(
    file: &Path,
    input: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<bool> {
    let (name, bytes) = if file == Path::new("-") {
        ("stdin".to_owned(), read(input).context("stdin cannot be read")?)
    } else {
        (file.display().to_string(), read_file(file)?)
    };
    match policy(&bytes, &name, file)? {
        Ok((policy, warnings)) => {
            write!(err, "{warnings}")?;
            if let Err(problem) = fits(&policy)? {
                writeln!(err, "error: {problem}\n --> {name}")?;
                return Ok(false);
            }
            // With these, and other than with limits, the gateway would not start.
            let problems = problems_of_files(&policy, file);
            for problem in &problems {
                writeln!(err, "error: {problem}\n --> {name}")?;
            }
            if !problems.is_empty() {
                return Ok(false);
            }
            let count = |count: usize, what: &str| match count {
                0 => format!("no {what}s"),
                1 => format!("1 {what}"),
                _ => format!("{count} {what}s"),
            };
            // The last class is of what is of no other.
            let classes = policy.classes().count() - 1;
            let classes = if classes == 1 { "1 class".to_owned() } else { format!("{classes} classes") };
            let limiters = count(policy.limiters().len(), "limiter");
            let plans = count(policy.plans().len(), "plan");
            let warned = count(warnings.warning_count(), "warning");
            writeln!(out, "{name}: {limiters}, {plans}, {classes}; {warned}")?;
            if let Some(modes) = without_store(&policy) {
                writeln!(out, "{modes}")?;
            }
            Ok(true)
        }
        Err(mistakes) => {
            write!(err, "{mistakes}")?;
            Ok(false)
        }
    }
}

/// What the limiters do while a shared store is away. None for a store in memory, which never is.
fn without_store(policy: &Policy) -> Option<String> {
    policy.store().url.as_ref()?;
    let modes = [
        (OnFailure::Open, "lets requests pass", "let requests pass"),
        (OnFailure::Local, "decides by this node's share", "decide by this node's share"),
        (OnFailure::Closed, "rejects requests with 503", "reject requests with 503"),
    ];
    let clauses: Vec<String> = modes
        .into_iter()
        .filter_map(|(mode, one_does, several_do)| {
            let limiters =
                policy.limiters().iter().filter(|limiter| !matches!(limiter.kind, Kind::Worker(_)));
            let names: Vec<&str> = limiters
                .filter(|limiter| limiter.on_store_failure == mode)
                .map(|limiter| &*limiter.name)
                .collect();
            let does = if names.len() == 1 { one_does } else { several_do };
            (!names.is_empty()).then(|| format!("{} {does}", names.join(", ")))
        })
        .collect();
    (!clauses.is_empty()).then(|| format!("while the store is away: {}", clauses.join("; ")))
}

/// Prints the JSON Schema of policy files.
pub fn print_schema(out: &mut dyn Write) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &schema()).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Where a file is that a policy names: beside the policy, unless the name says otherwise.
pub fn beside(policy: &Path, named: &str) -> PathBuf {
    policy.parent().unwrap_or(Path::new("")).join(named)
}

type Outcome = Result<(Policy, Mistakes), Mistakes>;

fn policy(bytes: &[u8], name: &str, file: &Path) -> anyhow::Result<Outcome> {
    let too_large = bytes.len() > Policy::LARGEST;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        // It ends in the midst of something.
        Err(_) if too_large => String::from_utf8_lossy(bytes),
        Err(_) if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") => {
            bail!("{name} is UTF-16: save it as UTF-8")
        }
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            bail!("{name} is no text: there are bytes on line {line} that are not UTF-8")
        }
    };
    let read = Policy::read_in(&text, &Here { policy: file });
    Ok(match read {
        Ok((policy, warnings)) => Ok((policy, warnings.in_file(name))),
        Err(mistakes) => Err(mistakes.in_file(name)),
    })
}

/// Whether the store that the policy names can keep its limits. Nothing is connected to: a runtime that does not run connects
/// nowhere.
fn fits(policy: &Policy) -> anyhow::Result<Result<(), PolicyError>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _context = runtime.enter();
    // Secrets of tokens are where the policy will run, not where it is checked.
    let builder = Limiter::builder().tokens(NoTokens).read_policy(policy.clone());
    Ok(match &policy.store().url {
        None => builder.store(MemoryStore::builder().max_bytes(1 << 20).build()).build().map(drop),
        Some(url) => {
            let store = RedisStore::builder(url.as_str()).build()?;
            builder.store(Failsafe::new(store)).build().map(drop)
        }
    })
}

/// Certificates and keys that are not what they should be. Secrets are where the policy will run, and nobody knows where files are that
/// are named beside standard input.
fn problems_of_files(policy: &Policy, file: &Path) -> Vec<String> {
    if file == Path::new("-") {
        return Vec::new();
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let problems =
        Certificates::problems(policy.gateway(), folder).into_iter().map(|error| error.to_string());
    let jwt = policy.jwt().filter(|jwt| jwt.secret_env.is_none());
    let tokens = jwt.and_then(|jwt| JwtTokens::from_policy(jwt, folder).err()).map(|error| error.to_string());
    problems.chain(tokens).collect()
}

fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = path.display();
    if path.is_dir() {
        bail!("{name} is a folder: a policy is a file, such as {}", path.join("tollgate.yaml").display());
    }
    let problem = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("there is no file {name}"),
        io::ErrorKind::PermissionDenied => anyhow::anyhow!("{name} may not be read by this user"),
        _ => anyhow::Error::new(error).context(format!("{name} cannot be read")),
    };
    File::open(path).and_then(|mut file| read(&mut file)).map_err(problem)
}

/// No more than what is needed to see that it is too much.
fn read(input: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(Policy::LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What this machine knows of a policy.
struct Here<'p> {
    policy: &'p Path,
}

impl Surroundings for Here<'_> {
    fn store(&self, address: &str) -> Result<(), String> {
        RedisStore::check_address(address).map_err(|error| error.to_string())
    }

    fn file(&self, path: &str) -> Result<(), String> {
        let path = beside(self.policy, path);
        let name = path.display();
        if path.is_dir() {
            return Err(format!("{name} is a folder"));
        }
        match File::open(&path).and_then(|mut file| read(&mut file)) {
            Ok(bytes) if bytes.trim_ascii().is_empty() => Err(format!("{name} is empty")),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("there is no file {name}")),
            Err(error) => Err(format!("{name} cannot be read: {error}")),
        }
    }
}
