//! The remote machine as a device (Xue et al., section 3.1) in two processes: one lends memory under a name, the other
//! copies into it and back out of it, without the first one doing anything.
//!
//! ```sh
//! copy_between_processes lend ADDRESS:PORT 65536                 # says its endpoint, then waits for the end of input
//! copy_between_processes copy ADDRESS:0 ENDPOINT 65536 1000      # copies 65536 bytes 1000 times, each way
//! ```
//!
//! ADDRESS is one of this host that the other process reaches. `--driver shm|verbs|tcp` as the last argument asks for a
//! driver; else it is the first of these that both have. Verbs needs the feature of that name. Beyond loopback both need
//! the same secret, in the variable `MACHINE_SECRET`.

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]
#![allow(clippy::print_stderr, reason = "where an error goes")]

use fabric::machine::{Channel, Copying, Direction, Driver, Machine, MachineConfig, RemoteRegion};
use fabric::{FabricError, Span};
use std::collections::VecDeque;
use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: copy_between_processes lend ADDRESS:PORT BYTES [--driver NAME] | copy ADDRESS:0 ENDPOINT BYTES COUNT [--driver NAME]";
/// The name that the memory is published under.
const NAME: &str = "lent";
/// Queue pairs, and copies under way on each.
const CHANNELS: u16 = 2;
const UNDER_WAY: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy_between_processes: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Outcome<()> {
    let (args, driver) = match args {
        [args @ .., "--driver", name] => (args, Some(driver(name)?)),
        _ => (args, None),
    };
    match args {
        ["lend", at, bytes] => {
            let bytes = number("BYTES", bytes)?;
            lend(&open(at, driver)?, bytes)
        }
        ["copy", at, endpoint, bytes, count] => {
            let (bytes, count) = (number("BYTES", bytes)?, number("COUNT", count)?);
            let peer = address("ENDPOINT", endpoint)?;
            copy(&open(at, driver)?, peer, bytes, count)
        }
        _ => Err(USAGE.into()),
    }
}

fn driver(name: &str) -> Outcome<Driver> {
    let known = Driver::ALL.into_iter().find(|driver| driver.to_string() == name);
    Ok(known.ok_or_else(|| format!("{name:?} is no driver; {USAGE}"))?)
}

/// At least one: nothing copied would be nothing to compare.
fn number(what: &str, word: &str) -> Outcome<usize> {
    let number = word.parse().ok().filter(|number| *number > 0);
    Ok(number.ok_or_else(|| format!("{what} is {word:?}, and must be a number from 1; {USAGE}"))?)
}

fn address(what: &str, word: &str) -> Outcome<SocketAddr> {
    Ok(word
        .parse()
        .map_err(|_| format!("{what} is {word:?}, and must be an IP address with a port; {USAGE}"))?)
}

/// The paper's `CreateRdmaDevice(num_cqs, num_qps_per_peer, endpoint)`.
fn open(endpoint: &str, driver: Option<Driver>) -> Outcome<Machine> {
    let secret = std::env::var("MACHINE_SECRET").unwrap_or_default().into();
    Ok(Machine::open(&MachineConfig {
        driver,
        secret,
        ..MachineConfig::new(address("ADDRESS", endpoint)?, 2, CHANNELS)
    })?)
}

fn lend(machine: &Machine, bytes: usize) -> Outcome<()> {
    let memory = machine.allocate_region(bytes)?;
    machine.publish(NAME, &memory)?;
    println!("{}", machine.endpoint());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn copy(machine: &Machine, peer: SocketAddr, bytes: usize, count: usize) -> Outcome<()> {
    let choice = machine.choice(peer, PATIENCE)?;
    println!("over {}: {}", choice.driver, choice.why);
    let remote = machine.lookup(peer, NAME, PATIENCE)?;
    let channels: Vec<_> = (0..CHANNELS)
        .map(|index| machine.channel(peer, index, PATIENCE))
        .collect::<Result<_, FabricError>>()?;
    let ours = machine.allocate_region(bytes)?;
    let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    ours.write(0, &sent)?;
    let span = ours.span(0, bytes as u64)?;
    let written = all(&channels, &span, &remote, Direction::LocalToRemote, count)?;
    ours.write(0, &vec![0; bytes])?;
    let read = all(&channels, &span, &remote, Direction::RemoteToLocal, count)?;
    let mut back = vec![0; bytes];
    ours.read(0, &mut back)?;
    if back != sent {
        return Err("what came back is not what was sent".into());
    }
    let rate = |time: Duration| (bytes * count) as f64 / time.as_secs_f64() / 1e6;
    println!("{bytes} bytes, {count} times: write {:.1} MB/s, read {:.1} MB/s", rate(written), rate(read));
    Ok(())
}

/// Some copies at a time on each channel.
fn all(
    channels: &[Channel],
    span: &Span,
    remote: &RemoteRegion,
    direction: Direction,
    count: usize,
) -> Outcome<Duration> {
    let started = Instant::now();
    let mut under_way: VecDeque<Copying> = VecDeque::new();
    for channel in channels.iter().cycle().take(count) {
        if under_way.len() == channels.len() * UNDER_WAY
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.wait()?;
        }
        under_way.push_back(channel.start_copy(span, remote, 0, direction)?);
    }
    under_way.into_iter().try_for_each(Copying::wait)?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_mean_nothing_are_an_error_of_usage_for_people() {
        let near = "127.0.0.1:0";
        for args in [
            &["copy", near, "127.0.0.1:1", "4096", "0"][..],
            &["copy", near, "127.0.0.1:1", "0", "1"],
            &["copy", near, "nowhere", "4096", "1"],
            &["lend", near, "-1"],
            &["lend", "nowhere", "4096"],
            &["lend", near, "4096", "--driver", "none"],
            &[],
        ] {
            let text = run(args).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(USAGE), "{args:?}: {text:?}");
        }
    }
}
