//! A server in a process of its own, with a folder for its files.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
}

/// What a server is started with: in its folder, which holds a file of this name with this text.
pub struct Start<'s> {
    pub program: &'s Path,
    pub arguments: Vec<String>,
    pub file: &'s str,
    pub text: String,
    pub port: u16,
}

impl Server {
    /// Starts it and waits until it takes connections.
    pub fn start(start: &Start<'_>) -> Result<Self, Failure> {
        let name = format!("tollgate-bench-{}-{}", std::process::id(), start.port);
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(start.file), &start.text)?;
        let said = File::create(folder.join("said"))?;
        let process = Command::new(start.program)
            .args(&start.arguments)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .map_err(|error| format!("{}: {error}", start.program.display()))?;
        let mut server = Self { process, folder, port: start.port };
        match server.wait_until_there() {
            Ok(()) => Ok(server),
            Err(what) => Err(format!("{} {what}:\n{}", start.program.display(), server.said()).into()),
        }
    }

    fn wait_until_there(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while TcpStream::connect(self.address()).is_err() {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("has ended with {status}"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("takes no connections after {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// All that it has said so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.join("said")).unwrap_or_default()
    }

    /// Puts another text in the place of one of its files, at one stroke.
    pub fn replace(&self, file: &str, text: &str) -> Result<(), Failure> {
        let beside = self.folder.join("beside");
        std::fs::write(&beside, text)?;
        Ok(std::fs::rename(beside, self.folder.join(file))?)
    }

    /// Asks it to read its files again.
    pub fn reload(&self) {
        self.signal(libc::SIGHUP);
    }

    fn signal(&self, signal: libc::c_int) {
        let process = libc::pid_t::try_from(self.process.id()).expect("a number of a process");
        // SAFETY: `kill` touches nothing of ours. The process has not been waited for, so its number is still its own.
        unsafe { libc::kill(process, signal) };
    }

    /// What its threads have used so far, in nanoseconds: for times that are too short for ticks.
    pub fn cpu_nanos(&self) -> Result<u64, Failure> {
        let mut used = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let on_processors = schedstat.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
            used += on_processors.ok_or_else(|| format!("no figures in schedstat: {schedstat}"))?;
        }
        Ok(used)
    }

    /// What it has used so far, with all its children.
    pub fn cpu(&self) -> Cpu {
        let all = processes();
        let mut own = vec![self.process.id()];
        let mut at = 0;
        while let Some(&parent) = own.get(at) {
            own.extend(all.iter().filter(|spent| spent.parent == parent).map(|spent| spent.process));
            at += 1;
        }
        let own = || all.iter().filter(|spent| own.contains(&spent.process));
        // SAFETY: `sysconf` reads a setting of the system and nothing of ours.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        Cpu {
            user: own().map(|spent| spent.user).sum::<u64>() as f64 / ticks_per_second,
            system: own().map(|spent| spent.system).sum::<u64>() as f64 / ticks_per_second,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked to end, it ends its children, too.
        self.signal(libc::SIGTERM);
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.process.kill();
                let _ = self.process.wait();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Processor time in seconds.
#[derive(Clone, Copy)]
pub struct Cpu {
    /// In the program itself.
    pub user: f64,
    /// In the kernel, for the program.
    pub system: f64,
}

impl Cpu {
    pub fn all(self) -> f64 {
        self.user + self.system
    }

    /// What has been used since `before`, for each of so many.
    pub fn since(self, before: Self, count: f64) -> Self {
        Self { user: (self.user - before.user) / count, system: (self.system - before.system) / count }
    }
}

/// What a process has used, in ticks of the system.
struct Spent {
    process: u32,
    parent: u32,
    user: u64,
    system: u64,
}

fn processes() -> Vec<Spent> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    folders
        .filter_map(|folder| {
            let process = folder.file_name().to_str()?.parse().ok()?;
            // It may have ended meanwhile.
            spent(process, &std::fs::read_to_string(folder.path().join("stat")).ok()?)
        })
        .collect()
}

/// Reads `/proc/PID/stat`. The second field is a name in brackets, which may hold anything.
fn spent(process: u32, stat: &str) -> Option<Spent> {
    const PARENT: usize = 1;
    const USER: usize = 11;
    const SYSTEM: usize = 12;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(Spent {
        process,
        parent: u32::try_from(number(PARENT)?).ok()?,
        user: number(USER)?,
        system: number(SYSTEM)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 10 0 0 0 120 30 5 6 20 0 1 0 1 1 1";
        let spent = spent(7, stat).unwrap();
        assert_eq!((spent.process, spent.parent, spent.user, spent.system), (7, 3, 120, 30));
    }
}
