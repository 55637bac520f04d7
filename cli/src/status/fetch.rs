//! One small HTTP GET with a deadline and a bound. Enough for a daemon of ours, and for nothing else.

use anyhow::{Context as _, bail};
use daemon::exit::{Failure, WithCode as _};
use daemon::status::ClusterStatus;
use proto_common::error::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Milliseconds for everything.
const GET_MS: u64 = 5_000;
/// Bytes of an answer: thousands of members with all their links.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Whose endpoints an address is believed to be: what to do where it does not answer differs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Scheduler,
    Member,
}

impl Whose {
    fn fix(self) -> &'static str {
        match self {
            Self::Scheduler => "is the scheduler running, and is this its HTTP address?",
            Self::Member => "is it running, and are its HTTP endpoints (node.http) reachable from here?",
        }
    }

    fn no_http(self) -> &'static str {
        match self {
            Self::Scheduler => "give the scheduler's HTTP address, not its control address",
            Self::Member => "another program uses this address; check that the member still has it",
        }
    }
}

/// The body of `http://address/path`.
pub(crate) async fn get(whose: Whose, address: &str, path: &str) -> Result<Vec<u8>, anyhow::Error> {
    let fix = whose.fix();
    let whole = timeout(Duration::from_millis(GET_MS), exchange(address, path)).await;
    let answer = whole
        .with_context(|| format!("{address} did not answer within {GET_MS} ms; {fix}"))
        .code(ExitCode::SchedulerUnreachable)?
        .with_context(|| format!("cannot connect to {address}; {fix}"))
        .code(ExitCode::SchedulerUnreachable)?;
    body(whose, address, answer)
}

/// What the scheduler at `address` says of its job, and the same as it came.
pub(crate) async fn get_status(address: &str) -> Result<(ClusterStatus, Vec<u8>), anyhow::Error> {
    let body = get(Whose::Scheduler, address, "/status").await?;
    let status = serde_json::from_slice(&body).map_err(|error| {
        let text = format!("{address} did not answer like a scheduler of this release: {error}");
        Failure::message(ExitCode::Failure, text)
    })?;
    Ok((status, body))
}

async fn exchange(address: &str, path: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn body(whose: Whose, address: &str, mut answer: Vec<u8>) -> Result<Vec<u8>, anyhow::Error> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(END.len()).position(|window| window == END) else {
        bail!("{address} does not speak HTTP; {}", whose.no_http());
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let first = head.lines().next().unwrap_or_default().to_owned();
    if first.split(' ').nth(1) != Some("200") {
        bail!("{address} answers {first:?}; is it a Gradwire daemon?");
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    answer.drain(..end + END.len());
    if length.is_some_and(|length| length != answer.len()) {
        bail!("the answer of {address} is truncated after {} bytes", answer.len());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(answer: &str) -> Result<String, String> {
        body(Whose::Scheduler, "x", answer.into())
            .map(|b| String::from_utf8(b).unwrap())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn answers_are_taken_or_refused() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), Ok("{}".into()));
        assert_eq!(parse("HTTP/1.1 200 OK\r\n\r\n{}"), Ok("{}".into()));
        assert!(parse("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}").unwrap_err().contains("truncated"));
        assert!(parse("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err().contains("404"));
        assert!(parse("garbage").unwrap_err().contains("not speak HTTP"));
    }

    #[tokio::test]
    async fn nobody_there_has_a_code_and_a_fix() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = get(Whose::Scheduler, &free.to_string(), "/status").await.unwrap_err();
        assert_eq!(daemon::exit::code_of(&error), ExitCode::SchedulerUnreachable);
        assert!(error.to_string().contains("is the scheduler running"), "{error}");
        let error = get(Whose::Member, &free.to_string(), "/trace").await.unwrap_err().to_string();
        assert!(error.contains("node.http") && !error.contains("scheduler"), "{error}");
    }
}
