//! Ports that nobody else uses.

use std::net::TcpListener;
use std::sync::Mutex;

static TAKEN: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 that is free and stays this process's own. A cluster's second port, ten thousand above, is free
/// too.
pub fn free_port() -> u16 {
    for port in 20_000..40_000_u16 {
        // Tests run in processes of their own. Who holds the port on the neighbouring address has the right to it.
        if let Ok(right) = TcpListener::bind(("127.0.0.2", port))
            && is_free(port)
            && is_free(port + 10_000)
        {
            TAKEN.lock().expect("no test has failed in here").push(right);
            return port;
        }
    }
    panic!("no free port from 20000 to 40000");
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
