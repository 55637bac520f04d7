//! What a process tells the service manager that started it (systemd's `Type=notify`): that it can serve, what it does and waits
//! for, that it is alive, that it stops. Each word is a datagram to the socket that the environment names, which `main` passes
//! in. It must not hold anybody up: what cannot be said is not said, and where there is no manager nothing is done.
//!
//! The socket is our own because the crate for it, sd-notify, reads the environment at each word.

use crate::shutdown::Shutdown;
use fabric::oneshot;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Where the manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// It ends a process that says nothing for so many microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Whom it watches; a child inherits the variables, and is not meant.
const WATCHED: &str = "WATCHDOG_PID";
/// How often it is told what the process does.
const STATUS_EVERY: Duration = Duration::from_secs(2);
/// It is fed so many times at least in the time that it waits.
const FEEDS: u32 = 4;
/// Bytes of a line that says what the process does; what is longer is cut.
const STATUS_BYTES_MAX: usize = 400;

/// The way to the service manager. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notify(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
    said: Mutex<Said>,
}

/// What the manager knows.
#[derive(Debug, Default)]
struct Said {
    status: String,
    is_ready: bool,
    is_stopping: bool,
    /// A silence is logged once.
    is_silent: bool,
}

impl Notify {
    /// The manager that the environment names, if it names one. One that cannot be reached is logged and done without: that is
    /// a socket of others, which a shell has handed on.
    #[must_use]
    pub fn from_env(env: &[(String, String)]) -> Self {
        Self::of_process(env, std::process::id())
    }

    fn of_process(env: &[(String, String)], pid: u32) -> Self {
        let value = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let Some(address) = value(SOCKET).filter(|address| !address.is_empty()) else {
            return Self::default();
        };
        let is_meant = value(WATCHED).is_none_or(|watched| watched.parse() == Ok(pid));
        let watchdog = value(WATCHDOG).filter(|_| is_meant).and_then(|usec| usec.parse().ok());
        let watchdog = watchdog.filter(|usec| *usec > 0).map(Duration::from_micros);
        match connect(address) {
            Ok(socket) => Self(Some(Arc::new(Manager { socket, watchdog, said: Mutex::default() }))),
            Err(error) => {
                tracing::warn!(%error, address, "cannot notify the service manager named by {SOCKET}");
                Self::default()
            }
        }
    }

    /// The process can serve. Said once.
    pub fn ready(&self, status: &str) {
        let Some(manager) = &self.0 else { return };
        let is_first = !std::mem::replace(&mut manager.lock().is_ready, true);
        if is_first {
            manager.say("READY=1");
        }
        self.status(status);
    }

    /// What the process does, or waits for; said when it changes.
    pub fn status(&self, status: &str) {
        let Some(manager) = &self.0 else { return };
        let mut said = manager.lock();
        if !said.is_stopping && said.status != status {
            status.clone_into(&mut said.status);
            manager.say(&format!("STATUS={}", one_line(status)));
        }
    }

    /// The process has begun to end. The manager does not watch it any more, and gives it the time of a stop.
    pub fn stopping(&self, reason: &str) {
        let Some(manager) = &self.0 else { return };
        let mut said = manager.lock();
        if !std::mem::replace(&mut said.is_stopping, true) {
            manager.say(&format!("STOPPING=1\nSTATUS=stopping: {}", one_line(reason)));
        }
    }

    /// The process is alive.
    pub fn feed(&self) {
        if let Some(manager) = &self.0 {
            manager.say("WATCHDOG=1");
        }
    }

    /// What was watched is over, and the process goes on without it: nobody feeds the watchdog any more.
    pub fn unwatch(&self, status: &str) {
        let Some(manager) = &self.0 else { return };
        if manager.watchdog.is_some() {
            manager.say("WATCHDOG_USEC=0");
        }
        self.status(status);
    }

    /// Says so when somebody asks the process to stop. Needs a tokio runtime.
    pub fn follow(&self, shutdown: &Shutdown) {
        if self.0.is_some() {
            let (notify, mut shutdown) = (self.clone(), shutdown.clone());
            tokio::spawn(async move { notify.stopping(&shutdown.wait().await) });
        }
    }

    /// When to say that the process is alive, and what it does. Needs a tokio runtime.
    #[must_use]
    pub fn beats(&self) -> Beats {
        let watchdog = |manager: &Arc<Manager>| manager.watchdog.map(|time| time / FEEDS);
        let period =
            self.0.as_ref().map(|manager| watchdog(manager).unwrap_or(STATUS_EVERY).min(STATUS_EVERY));
        Beats(period.map(|period| {
            let mut beats = interval(period.max(Duration::from_millis(1)));
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            beats
        }))
    }

    /// Tells the manager how the process is for as long as it is not dropped: alive while all threads answer that move data,
    /// or `moved` grows, which counts what a thread does that is too busy to answer. Returns at once where there is no manager.
    pub async fn keep(
        self,
        mut pulse: Pulse,
        moved: impl Fn() -> u64 + Send,
        status: impl Fn() -> String + Send,
    ) {
        let (mut beats, mut before) = (self.beats(), moved());
        if self.0.is_none() {
            return;
        }
        loop {
            beats.next().await;
            let now = moved();
            let silent = pulse.silent();
            if silent == 0 || now != before {
                self.feed();
            }
            self.note_silence(silent);
            before = now;
            self.status(&status());
        }
    }

    fn note_silence(&self, silent: usize) {
        let Some(manager) = &self.0 else { return };
        let was_silent = std::mem::replace(&mut manager.lock().is_silent, silent > 0);
        if silent > 0 && !was_silent {
            tracing::warn!(
                silent,
                "data threads do not answer; the service manager's watchdog is not notified until they do"
            );
        }
    }
}

impl Manager {
    fn lock(&self) -> MutexGuard<'_, Said> {
        // What is noted is whole; nothing that can panic runs in between.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, words: &str) {
        // The next word comes soon; where the manager does not read, none is to wait for it.
        if let Err(error) = self.socket.send(words.as_bytes()) {
            tracing::debug!(%error, words, "cannot notify the service manager");
        }
    }
}

/// The times to tell something at; never, where there is nobody to be told.
#[derive(Debug)]
pub struct Beats(Option<Interval>);

impl Beats {
    /// Waits for the next one; the first is now. Cancel-safe.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(beats) => drop(beats.tick().await),
            None => std::future::pending().await,
        }
    }
}

/// Signs of life of threads: all are asked, nobody is waited for, and they are asked again when all have answered.
pub struct Pulse {
    ask: Box<dyn Fn() -> Vec<oneshot::Receiver<()>> + Send>,
    open: Vec<oneshot::Receiver<()>>,
}

impl Pulse {
    /// `ask` asks every thread that there is, and returns where each one's answer comes.
    pub fn new(ask: impl Fn() -> Vec<oneshot::Receiver<()>> + Send + 'static) -> Self {
        Self { ask: Box::new(ask), open: Vec::new() }
    }

    /// How many have not answered what they were asked before. A thread that has ended is not waited for: whoever depends on it
    /// notices.
    fn silent(&mut self) -> usize {
        self.open.retain(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        let silent = self.open.len();
        if silent == 0 {
            self.open = (self.ask)();
        }
        silent
    }
}

/// `@` begins the name of a socket that is not in the file system.
fn connect(address: &str) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A line of bounded length: a second one would be another word.
fn one_line(text: &str) -> String {
    let mut line = text.replace(['\n', '\r'], " ");
    let end = (0..=STATUS_BYTES_MAX).rev().find(|end| line.is_char_boundary(*end));
    line.truncate(end.unwrap_or(0));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager, and what it hears.
    struct Heard(UnixDatagram);

    impl Heard {
        fn new(pairs: &[(&str, &str)], pid: u32) -> (Self, Notify) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("notify");
            let socket = UnixDatagram::bind(&path).unwrap();
            let mut env = vec![(SOCKET.to_owned(), path.to_str().unwrap().to_owned())];
            env.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            (Self(socket), Notify::of_process(&env, pid))
        }

        fn next(&self) -> String {
            let mut bytes = [0; 1024];
            let length = self.0.recv(&mut bytes).expect("a word within the deadline");
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        }

        fn is_empty(&self) -> bool {
            self.0.set_nonblocking(true).unwrap();
            let is_empty = self.0.recv(&mut [0; 16]).is_err();
            self.0.set_nonblocking(false).unwrap();
            is_empty
        }
    }

    #[test]
    fn each_word_once_and_none_after_the_stop() {
        let (heard, notify) = Heard::new(&[], 1);
        notify.status("looking\nfor the scheduler");
        notify.ready("registered");
        notify.ready("registered");
        notify.status("registered");
        notify.feed();
        notify.stopping("SIGTERM received");
        notify.stopping("again");
        notify.status("draining");
        let words = ["STATUS=looking for the scheduler", "READY=1", "STATUS=registered", "WATCHDOG=1"];
        words.iter().for_each(|word| assert_eq!(heard.next(), *word));
        assert_eq!(heard.next(), "STOPPING=1\nSTATUS=stopping: SIGTERM received");
        assert!(heard.is_empty());
    }

    #[test]
    fn a_line_has_a_bound() {
        let (heard, notify) = Heard::new(&[], 1);
        notify.status(&"é".repeat(STATUS_BYTES_MAX));
        assert_eq!(heard.next(), format!("STATUS={}", "é".repeat(STATUS_BYTES_MAX / 2)));
        notify.status(&"e".repeat(STATUS_BYTES_MAX));
        assert_eq!(heard.next().len(), "STATUS=".len() + STATUS_BYTES_MAX);
    }

    #[test]
    fn the_watchdog_is_this_process_own() {
        let of = |pairs: &[(&str, &str)]| Heard::new(pairs, 7).1.0.unwrap().watchdog;
        assert_eq!(of(&[(WATCHDOG, "2000000")]), Some(Duration::from_secs(2)));
        assert_eq!(of(&[(WATCHDOG, "2000000"), (WATCHED, "7")]), Some(Duration::from_secs(2)));
        assert_eq!(of(&[(WATCHDOG, "2000000"), (WATCHED, "8")]), None);
        assert_eq!(of(&[(WATCHDOG, "0")]), None);
        assert_eq!(of(&[(WATCHDOG, "soon")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn without_a_manager_nothing_is_said_and_nothing_fails() {
        let gone = [(SOCKET.to_owned(), "/nowhere/notify".to_owned())];
        for notify in [Notify::default(), Notify::from_env(&[]), Notify::from_env(&gone)] {
            assert!(notify.0.is_none());
            notify.ready("x");
            notify.stopping("x");
        }
    }

    #[test]
    fn a_name_outside_the_file_system() {
        let name = format!("gradwire-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notify::from_env(&[(SOCKET.into(), format!("@{name}"))]).feed();
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"WATCHDOG=1");
    }

    #[test]
    fn whoever_does_not_answer_is_silent_until_it_does() {
        let (sender, asked) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
        let mut pulse = Pulse::new(move || {
            let ask = |_| {
                let (reply, answer) = oneshot::channel();
                let _ = sender.send(reply);
                answer
            };
            (0..2).map(ask).collect()
        });
        assert_eq!(pulse.silent(), 0, "nobody was asked before");
        let (first, second) = (asked.recv().unwrap(), asked.recv().unwrap());
        assert_eq!(pulse.silent(), 2);
        first.send(());
        assert_eq!(pulse.silent(), 1);
        assert!(asked.try_recv().is_err(), "nobody is asked twice meanwhile");
        second.send(());
        assert_eq!(pulse.silent(), 0);
        assert!(asked.try_recv().is_ok(), "all are asked again");
        while asked.try_recv().is_ok() {}
        assert_eq!(pulse.silent(), 0, "threads that have ended are not waited for");
    }

    /// A thread that hangs, of a process whose control side is well.
    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_fed_while_data_threads_answer_or_are_seen_to_work() {
        let (heard, notify) = Heard::new(&[(WATCHDOG, "400000")], 7);
        let (hangs, works) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(0)));
        let (hung, held) = (hangs.clone(), Mutex::new(Vec::new()));
        let pulse = Pulse::new(move || {
            let (reply, answer) = oneshot::channel();
            match *hung.lock().unwrap() {
                true => held.lock().unwrap().push(reply),
                false => reply.send(()),
            }
            vec![answer]
        });
        let worked = works.clone();
        let status = || "serving".to_owned();
        let keeping = tokio::spawn(notify.keep(pulse, move || *worked.lock().unwrap(), status));
        let fed = |words: &[String]| words.iter().filter(|word| *word == "WATCHDOG=1").count();
        let after = async |ms| {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let mut words = Vec::new();
            while let Ok(word) = heard_now(&heard.0) {
                words.push(word);
            }
            words
        };
        // A socket keeps ten words that are not read.
        let words = after(350).await;
        assert!(words.contains(&"STATUS=serving".to_owned()), "{words:?}");
        assert_eq!(fed(&words), 4, "every 100 ms, and at once: {words:?}");
        *hangs.lock().unwrap() = true;
        // What was asked last is answered, and what is asked then is not.
        assert_eq!(fed(&after(700).await), 1);
        *works.lock().unwrap() = 5;
        assert_eq!(fed(&after(700).await), 1, "it has read something, once");
        keeping.abort();
    }

    fn heard_now(socket: &UnixDatagram) -> io::Result<String> {
        socket.set_nonblocking(true)?;
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}
