//! What decisions cost on both ends: processor time of the server and of this process, and changes to the data.

use std::mem::MaybeUninit;

use tollgate_testkit::RedisServer;

/// Counts from when it is read on.
#[derive(Clone, Copy)]
pub struct Meter {
    server_cpu: f64,
    client_cpu: f64,
    changes: f64,
}

impl Meter {
    pub fn read(server: &RedisServer) -> Self {
        Self { server_cpu: server_cpu(server), client_cpu: client_cpu(), changes: changes(server) }
    }

    /// What has been spent since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            server_cpu: self.server_cpu - before.server_cpu,
            client_cpu: self.client_cpu - before.client_cpu,
            changes: self.changes - before.changes,
        }
    }

    pub fn server_micros(self) -> f64 {
        self.server_cpu * 1e6
    }

    pub fn client_micros(self) -> f64 {
        self.client_cpu * 1e6
    }

    /// As the server counts them: keys written, members added, expiries set.
    pub fn changes(self) -> f64 {
        self.changes
    }
}

/// In seconds, as all of these.
fn server_cpu(server: &RedisServer) -> f64 {
    let spent = |field| server.info("cpu", field).expect("INFO tells of the processor");
    spent("used_cpu_user") + spent("used_cpu_sys")
}

fn changes(server: &RedisServer) -> f64 {
    server.info("persistence", "rdb_changes_since_last_save").expect("INFO tells of changes")
}

/// Of all threads of this process.
fn client_cpu() -> f64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `getrusage` fills the struct it is given a pointer to, or fails, which is looked at before the struct is.
    let usage = unsafe {
        assert_eq!(
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()),
            0,
            "getrusage works on this system"
        );
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
