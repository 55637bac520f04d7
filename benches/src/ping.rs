//! Bare exchanges between two processes that stay on a CPU each, as subjects: what a latency can be compared with that
//! waits in the same way. Nothing of Gradwire's but two shared words is in them.
//!
//! It must not compute ratios.

use crate::child::{self, Child, cpus};
use crate::cluster::{Cluster, FromChild, ToWorker};
use crate::laps::Times;
use crate::measure::{Sample, Subject};
use crate::workload::{FOUR_FLOATS_BYTES, WorkSpec};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use fabric::{SharedWord, SharedWords, allocations};
use std::io::{BufRead as _, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How the two processes exchange, and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Words in shared memory, looked at until they change.
    Spin,
    /// The same words, slept on as futexes.
    Futex,
    /// Four floats over a unix socket, blocking.
    Unix,
    /// Four floats over TCP, blocking.
    Tcp,
}

impl Way {
    /// What its subject is called.
    fn subject(self) -> &'static str {
        match self {
            Self::Spin => "spin_ping_pong",
            Self::Futex => "futex_ping_pong",
            Self::Unix => "unix_ping_pong",
            Self::Tcp => "tcp_ping_pong",
        }
    }

    fn argument(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Futex => "futex",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// Arguments of the hidden subcommands.
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    #[arg(long, value_enum)]
    way: Way,
    /// Where the first process waits for the second, which is told.
    #[arg(long)]
    at: Option<String>,
}

/// A bare exchange as a subject of the suite.
pub(crate) struct PingPong {
    way: Way,
    cluster: Option<Cluster>,
}

impl PingPong {
    /// No process runs yet.
    pub(crate) fn new(way: Way) -> Self {
        Self { way, cluster: None }
    }
}

impl Subject for PingPong {
    fn name(&self) -> &str {
        self.way.subject()
    }

    fn work(&self, spec: &WorkSpec) -> WorkSpec {
        // Four floats each way, whatever the others do.
        let (seconds, warmup_rounds) = (spec.seconds, spec.warmup_rounds);
        WorkSpec { seconds, warmup_rounds, ..WorkSpec::alike(&spec.name, spec.op, FOUR_FLOATS_BYTES, 1) }
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        let spec = self.work(spec);
        let mut cluster = match self.cluster.take() {
            Some(cluster) => cluster,
            None => {
                let args = ["ping", "--way", self.way.argument()].map(str::to_owned);
                let worker = Child::spawn_self(self.way.subject(), &args, Vec::new())?;
                Cluster::new("ping-pong", &spec, Vec::new(), vec![worker])
            }
        };
        let sample = cluster.sample(&spec)?;
        self.cluster = Some(cluster);
        Ok(sample)
    }

    fn stop(&mut self) {
        self.cluster = None;
    }
}

/// One process's end of an exchange.
enum End {
    Words { words: SharedWords, sleeps: bool, number: u32 },
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// How long one exchange may take before something is wrong.
const EXCHANGE_DEADLINE: Duration = Duration::from_secs(20);

/// Looks at a word between two looks at the clock.
const LOOKS: u32 = 1 << 20;

/// Says in the first word that nothing is going on: the second process sleeps meanwhile.
const IDLE: u32 = u32::MAX;

/// Round trips that are timed together, as a clock takes as long as one.
const TIMED_TOGETHER: u64 = 32;

/// The first process: does what the suite tells it, with the second one.
///
/// # Errors
/// The second process does not answer.
pub(crate) fn main(args: &PingArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let (end, _echo) = open(args.way)?;
    child::stay_on(cpus().0)?;
    let mut end = end;
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            ToWorker::Run { rounds } => end.exchange(rounds)?,
            ToWorker::Connect { .. } | ToWorker::Declare { .. } | ToWorker::Verify => FromChild::Ready,
        };
        child::say(&answer)?;
    }
    Ok(())
}

/// Starts the second process, and meets it.
fn open(way: Way) -> anyhow::Result<(End, Child)> {
    let echo = |at: &str| {
        let args = ["ping-echo", "--way", way.argument(), "--at", at].map(str::to_owned);
        Child::spawn_self("the other end of a ping-pong", &args, Vec::new())
    };
    match way {
        Way::Spin | Way::Futex => {
            let words = SharedWords::create()?;
            words.store(SharedWord::First, IDLE);
            let path = words.path().context("shared words without a file")?;
            let echo = echo(&path.to_string_lossy())?;
            Ok((End::Words { words, sleeps: way == Way::Futex, number: 0 }, echo))
        }
        Way::Unix => {
            let path = std::env::temp_dir().join(format!("gradwire-bench-ping-{}", std::process::id()));
            let listener = UnixListener::bind(&path).context("cannot listen on a unix socket")?;
            let echo = echo(&path.to_string_lossy());
            let met = echo.and_then(|echo| Ok((listener.accept()?.0, echo)));
            std::fs::remove_file(&path)?;
            let (stream, echo) = met?;
            stream.set_read_timeout(Some(EXCHANGE_DEADLINE))?;
            Ok((End::Unix(stream), echo))
        }
        Way::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
            let echo = echo(&listener.local_addr()?.to_string())?;
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(EXCHANGE_DEADLINE))?;
            Ok((End::Tcp(stream), echo))
        }
    }
}

/// The second process: answers until it is ended.
///
/// # Errors
/// The first process is not there.
pub(crate) fn echo(args: &PingArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    child::stay_on(cpus().1)?;
    let at = args.at.as_deref().context("nobody to answer")?;
    match args.way {
        Way::Spin | Way::Futex => answer_words(&SharedWords::open(Path::new(at))?, args.way == Way::Futex),
        Way::Unix => answer(UnixStream::connect(at)?),
        Way::Tcp => {
            let stream = TcpStream::connect(at)?;
            stream.set_nodelay(true)?;
            answer(stream)
        }
    }
}

/// Until the first process closes.
fn answer(mut stream: impl Read + Write) -> anyhow::Result<()> {
    let mut message = [0; FOUR_FLOATS_BYTES as usize];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Until it is ended with the first process: nothing else tells the end of shared memory.
fn answer_words(words: &SharedWords, sleeps: bool) -> ! {
    let mut last = 0;
    loop {
        let value = words.load(SharedWord::First);
        if value == IDLE {
            words.sleep_while(SharedWord::First, IDLE, EXCHANGE_DEADLINE);
            last = 0;
        } else if value != last {
            last = value;
            words.store(SharedWord::Second, value);
            if sleeps {
                words.wake(SharedWord::Second);
            }
        } else if sleeps {
            words.sleep_while(SharedWord::First, last, EXCHANGE_DEADLINE);
        } else {
            std::hint::spin_loop();
        }
    }
}

impl End {
    /// So many round trips.
    fn exchange(&mut self, rounds: u64) -> anyhow::Result<FromChild> {
        let mut times = Times::new(rounds.div_ceil(TIMED_TOGETHER));
        self.begin();
        let (start, allocated) = (Instant::now(), allocations::of_process());
        let mut done = 0;
        while done < rounds {
            let count = TIMED_TOGETHER.min(rounds - done);
            let started = Instant::now();
            for _ in 0..count {
                self.round_trip()?;
            }
            times.note(started.elapsed() / count as u32);
            done += count;
        }
        let seconds = start.elapsed().as_secs_f64();
        let allocations = allocations::of_process() - allocated;
        self.end();
        Ok(FromChild::Done { seconds, latencies_ns: times.kept(), allocations })
    }

    fn begin(&self) {
        if let Self::Words { words, number, .. } = self {
            words.store(SharedWord::First, *number);
            words.wake(SharedWord::First);
        }
    }

    fn end(&self) {
        if let Self::Words { words, .. } = self {
            words.store(SharedWord::First, IDLE);
            words.wake(SharedWord::First);
        }
    }

    fn round_trip(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Words { words, sleeps, number } => {
                // Counted on over all runs, as the other end may not have seen the pause between two of them.
                *number = (*number + 1) % IDLE;
                ask_words(words, *sleeps, *number)
            }
            Self::Unix(stream) => ask(stream),
            Self::Tcp(stream) => ask(stream),
        }
    }
}

fn ask(stream: &mut (impl Read + Write)) -> anyhow::Result<()> {
    let mut message = [7; FOUR_FLOATS_BYTES as usize];
    stream.write_all(&message)?;
    stream.read_exact(&mut message).context("the other end does not answer")
}

fn ask_words(words: &SharedWords, sleeps: bool, number: u32) -> anyhow::Result<()> {
    let before = words.load(SharedWord::Second);
    words.store(SharedWord::First, number);
    if sleeps {
        words.wake(SharedWord::First);
    }
    let mut deadline: Option<Instant> = None;
    loop {
        for _ in 0..if sleeps { 1 } else { LOOKS } {
            if words.load(SharedWord::Second) == number {
                return Ok(());
            }
            if sleeps {
                words.sleep_while(SharedWord::Second, before, EXCHANGE_DEADLINE);
            } else {
                std::hint::spin_loop();
            }
        }
        let now = Instant::now();
        let ends = *deadline.get_or_insert(now + EXCHANGE_DEADLINE);
        anyhow::ensure!(now < ends, "the other end does not answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_answered_in_both_ways_of_waiting_and_again_after_a_pause() {
        for sleeps in [false, true] {
            let words = SharedWords::create().expect("words");
            words.store(SharedWord::First, IDLE);
            let theirs = SharedWords::open(&words.path().expect("a path")).expect("opens");
            // Ends with the test's process.
            std::thread::spawn(move || answer_words(&theirs, sleeps));
            let mut end = End::Words { words, sleeps, number: 0 };
            for rounds in [1, 40, 3] {
                let FromChild::Done { seconds, latencies_ns, .. } = end.exchange(rounds).expect("answers")
                else {
                    panic!("another answer");
                };
                assert!(seconds > 0.0);
                assert_eq!(latencies_ns.len() as u64, rounds.div_ceil(TIMED_TOGETHER));
            }
        }
    }

    #[test]
    fn a_socket_s_other_end_answers_until_it_is_closed() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let echo = std::thread::spawn(move || answer(theirs));
        let mut end = End::Unix(ours);
        assert!(matches!(end.exchange(5), Ok(FromChild::Done { .. })));
        drop(end);
        echo.join().expect("no panic").expect("ended in order");
    }
}
