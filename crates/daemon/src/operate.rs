//! `tollgate status` and `tollgate switch`: operating a running instance through its admin door.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use tollgate::{Policy, PolicyFile};

pub use crate::admin::lines;
use crate::settings;

/// Where the instance is.
#[derive(Args, Clone, Debug)]
pub struct Instance {
    /// The admin door of the instance [default: `admin.listen` of ./tollgate.yaml, else 127.0.0.1:8083]
    #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDRESS")]
    admin: Option<String>,
    /// The token of that door
    #[arg(long, env = "TOLLGATE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// The address of an admin endpoint, and which setting it is from.
struct AdminAddress {
    address: SocketAddr,
    from: String,
}

impl Instance {
    /// How everything stands.
    pub async fn status(&self) -> anyhow::Result<Value> {
        let status = self.ask("GET", "/api/status", None).await?;
        let is_ours = status.get("version").is_some_and(Value::is_string)
            && status.get("limiters").is_some_and(Value::is_array)
            && status.get("store").is_some_and(Value::is_object);
        if !is_ours {
            bail!(
                "{} is no admin door of a Tollgate, whatever it is: say which is (--admin, TOLLGATE_ADMIN)",
                self.admin_address()?.address
            );
        }
        Ok(status)
    }

    /// Sets the mode of a limiter, or of all.
    pub async fn switch(&self, limiter: Option<&str>, mode: &str) -> anyhow::Result<()> {
        let path = match limiter {
            Some(name) if name.contains(['/', '?', '#', '%', ' ']) => {
                bail!("{name:?} is no name of a limiter")
            }
            Some(name) => format!("/api/limiters/{name}/mode"),
            None => "/api/mode".to_owned(),
        };
        // Whoever else answers there is not told to do anything, and is not believed to have done it.
        self.status().await?;
        let set = self.ask("POST", &path, Some(json!({ "mode": mode }))).await?;
        if set.get("mode").and_then(Value::as_str) != Some(mode) {
            bail!(
                "{} has not said that it was done: look at `tollgate status`",
                self.admin_address()?.address
            );
        }
        Ok(())
    }

    /// Where to ask: what --admin says, or the policy file that `tollgate run` would use here.
    fn admin_address(&self) -> anyhow::Result<AdminAddress> {
        let parse = |source: &str, text: &str| {
            settings::address(source, text.trim(), settings::USUAL_ADMIN)
                .map_err(|error| anyhow::anyhow!("{error}"))
        };
        if let Some(admin) = &self.admin {
            return Ok(AdminAddress { address: parse("--admin", admin)?, from: "--admin".to_owned() });
        }
        let file = settings::policy_path();
        // An instance that is running may have been started before the file became invalid.
        let policy = file.as_deref().and_then(PolicyFile::salvage);
        let listen = policy.as_ref().and_then(Policy::admin_listen);
        let (Some(file), Some(listen)) = (file, listen) else {
            return Ok(AdminAddress {
                address: parse("--admin", settings::USUAL_ADMIN)?,
                from: "the default".to_owned(),
            });
        };
        let from = format!("`admin.listen` of {}", file.display());
        if listen == "off" {
            bail!("{from} is off: if the instance was started with another address, say --admin ADDRESS");
        }
        let mut address = parse("admin.listen:", listen)?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Ok(AdminAddress { address, from })
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let AdminAddress { address, from } = self.admin_address()?;
        let asked = async {
            let stream = TcpStream::connect(address).await.with_context(|| {
                format!(
                    "nobody answers at {address} ({from}): is `tollgate run` at work, and is this its admin door (--admin)?"
                )
            })?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let mut request =
                Request::builder().method(method).uri(path).header(header::HOST, address.to_string());
            if let Some(token) = &self.token {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let body = match body {
                Some(body) => {
                    request = request.header(header::CONTENT_TYPE, "application/json");
                    body.to_string()
                }
                None => String::new(),
            };
            let response = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            let value: Value = serde_json::from_slice(&bytes)
                .with_context(|| format!("{address} is no admin door of a Tollgate: it answered {status}"))?;
            if status == StatusCode::UNAUTHORIZED {
                match &self.token {
                    Some(_) => bail!(
                        "the admin door at {address} has another token than this one (--token, TOLLGATE_TOKEN)"
                    ),
                    None => bail!(
                        "the admin door at {address} wants its token: say --token, or set TOLLGATE_TOKEN"
                    ),
                }
            }
            if !status.is_success() {
                bail!("{}", value.get("detail").and_then(Value::as_str).unwrap_or("it was refused"));
            }
            Ok(value)
        };
        tokio::time::timeout(Duration::from_secs(10), asked)
            .await
            .with_context(|| format!("{address} has not answered within 10 s"))?
    }
}
