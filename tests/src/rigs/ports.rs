//! Ports for programs that have to be told one before they listen.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Below the ports that the system gives to connections by itself: a test beside this one cannot get one of them by chance before
/// the program listens. `gradwire chaos` takes its ports from 20,000 on, and knows nothing of the locks here; the tests of MXNet
/// take theirs from 16,000 on.
const PORTS: std::ops::Range<u16> = 11_000..16_000;

/// The ports that this process has taken. Their files stay locked until it ends.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port of this machine that nobody else has, and that no other test gets while this process lives.
#[must_use]
pub fn free_port() -> u16 {
    let directory = std::env::temp_dir().join("gradwire-test-ports");
    std::fs::create_dir_all(&directory).expect("a directory for the ports in use");
    // Processes begin apart, so that they rarely ask for the same ones.
    let first = std::process::id() % u32::from(PORTS.end - PORTS.start);
    let ports = (PORTS.start + first as u16..PORTS.end).chain(PORTS);
    for port in ports {
        let file = File::create(directory.join(port.to_string())).expect("a file for a port");
        if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            TAKEN.lock().expect("no test panics here").push(file);
            return port;
        }
    }
    panic!("no port from {} to {} is free", PORTS.start, PORTS.end);
}
