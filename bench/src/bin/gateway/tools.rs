//! Programs that are needed, and where they are.

use std::path::{Path, PathBuf};

use tollgate_bench::machine::version_of;

use crate::Failure;

/// Where scripts/bench-setup.sh puts what is in no package.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/bin");
/// Where servers are, and not everybody looks.
const OF_ROOT: &str = "/usr/sbin";

pub struct Tools {
    pub wrk: PathBuf,
    pub nginx: PathBuf,
    pub haproxy: PathBuf,
    pub envoy: PathBuf,
    pub tollgate: PathBuf,
}

impl Tools {
    pub fn find(tollgate: &Path) -> Result<Self, Failure> {
        let tollgate = tollgate
            .canonicalize()
            .map_err(|error| format!("{}: {error}; `cargo build --release` makes it", tollgate.display()))?;
        Ok(Self {
            wrk: find("wrk")?,
            nginx: find("nginx")?,
            haproxy: find("haproxy")?,
            envoy: find("envoy")?,
            tollgate,
        })
    }

    pub fn versions(&self) -> String {
        format!(
            "nginx {}, HAProxy {}, Envoy {}; load by wrk {}",
            version_of(&self.nginx, "-v"),
            version_of(&self.haproxy, "-v"),
            version_of(&self.envoy, "--version"),
            version_of(&self.wrk, "-v"),
        )
    }
}

fn find(program: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = [INSTALLED, OF_ROOT].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(others).map(|folder| folder.join(program));
    let found = places.find(|place| place.is_file());
    found.ok_or_else(|| format!("{program} is missing: scripts/bench-setup.sh installs it").into())
}
