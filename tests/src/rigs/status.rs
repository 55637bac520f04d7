//! A minimal HTTP client for the daemons' endpoints.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The body of a page; an error where there is no 200.
pub fn get(address: &str, path: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| format!("{address}{path}: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(answer),
    }
}

/// What a daemon's `/metrics` says of one of its numbers.
#[must_use]
pub fn number(address: &str, name: &str) -> u64 {
    let metrics = get(address, "/metrics").expect("metrics");
    let line = metrics.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect(name)
}
