//! The script, put together by `build.rs`, and one call of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use sha1_smol::Sha1;
use tokio::sync::{Mutex, MutexGuard};
use tollgate_core::Timestamp;

use crate::address::Connection;
use crate::stats::Counts;
use crate::wire::{Message, Reply, argument};

/// The text that the server runs.
const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/decide.lua"));

/// The name that the server gives it.
fn sha() -> &'static str {
    static SHA: LazyLock<String> = LazyLock::new(|| Sha1::from(SOURCE).hexdigest());
    &SHA
}

/// The script as the servers know it.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) counts: Arc<Counts>,
    /// Held by whoever sends the text. How often that was done.
    sending: Mutex<()>,
    sent: AtomicU64,
}

impl Script {
    /// Runs the script once, for messages that are sent as one. If the server does not know it, it is sent along.
    pub(crate) async fn call<'m>(
        &self,
        connection: &mut Connection,
        messages: impl Iterator<Item = &'m Message> + Clone,
        at: Option<Timestamp>,
    ) -> RedisResult<Reply> {
        self.counts.calls.add(1);
        let argument = argument(messages.clone(), at);
        let keys = messages.clone().map(|message| message.keys.len()).sum::<usize>();
        let command = |name: &str, script: &str| {
            let mut command = Cmd::with_capacity(keys + 4, argument.len() + 96 * keys + script.len() + 32);
            command.arg(name).arg(script).arg(keys);
            for key in messages.clone().flat_map(|message| &message.keys) {
                command.arg(key.as_slice());
            }
            command.arg(argument.as_slice());
            command
        };
        let unexpected =
            || RedisError::from((ErrorKind::UnexpectedReturnType, "the script answers with numbers"));
        let alone = messages.clone().nth(1).is_none();
        match self.run(connection, command, alone).await? {
            Value::BulkString(numbers) => Reply::read(&numbers).ok_or_else(unexpected),
            _ => Err(unexpected()),
        }
    }

    /// Runs the script by its name, and where it is not known, or a slot is elsewhere, tries again: then nothing has run.
    /// A slot whose keys are half here and half there is waited for, for as long as the caller likes; but messages that
    /// only travel together are not made to wait for each other's keys: they are told.
    async fn run(
        &self,
        connection: &mut Connection,
        command: impl Fn(&str, &str) -> Cmd,
        alone: bool,
    ) -> RedisResult<Value> {
        /// Redirects that are followed; a cluster that sends us round in circles is not asked for ever.
        const REDIRECTS: u32 = 5;
        const MOVING: Duration = Duration::from_millis(2);
        // Held while the text is on its way: the others wait for it to arrive, and then need not send it, too.
        let mut sends: Option<MutexGuard<'_, ()>> = None;
        let mut pointed: Option<RedisError> = None;
        let mut redirects = 0;
        while redirects <= REDIRECTS {
            let sent_before = self.sent.load(Ordering::Acquire);
            let command = if sends.is_some() { command("EVAL", SOURCE) } else { command("EVALSHA", sha()) };
            let sent = match &pointed {
                Some(error) => match connection.send_to(&command, error).await {
                    Some(sent) => sent,
                    None => connection.send(&command).await,
                },
                None => connection.send(&command).await,
            };
            let error = match sent {
                Ok(value) => {
                    if sends.is_some() {
                        self.sent.fetch_add(1, Ordering::Release);
                    }
                    return Ok(value);
                }
                Err(error) => error,
            };
            match error.code() {
                Some("NOSCRIPT") if sends.is_none() => {
                    let guard = self.sending.lock().await;
                    if self.sent.load(Ordering::Acquire) == sent_before {
                        self.counts.script_loads.add(1);
                        sends = Some(guard);
                    }
                }
                Some("MOVED" | "ASK") => {
                    self.counts.redirects.add(1);
                    redirects += 1;
                    pointed = Some(error);
                }
                Some("TRYAGAIN") if alone => {
                    // By then it may be all there, or all elsewhere.
                    tokio::time::sleep(MOVING).await;
                    pointed = None;
                }
                _ => return Err(error),
            }
        }
        Err(RedisError::from((ErrorKind::Io, "redirected too often")))
    }
}
