//! Logs on stderr, as text or as one JSON object a line, each with the role and, once known, the rank.
//! It must not log anything itself, nor be used by libraries: only a process's `main` sets a subscriber.

use crate::settings::SettingsError;
use proto_common::config::LogSettings;
use proto_common::ids::{Rank, Role};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload};

/// Target of what is logged whatever the filter says, down to warnings.
pub(crate) const ALWAYS: &str = "daemon::always";

/// Who logs: the rank is added to every line as soon as the scheduler has given it.
#[derive(Clone, Debug)]
pub struct LogIdentity {
    role: Role,
    rank: Arc<OnceLock<Rank>>,
}

impl LogIdentity {
    /// An identity without a rank.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role, rank: Arc::default() }
    }

    /// What this process is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its rank, once known.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        self.rank.get().copied()
    }

    /// The rank, from now on part of every line. A second call changes nothing.
    pub fn set_rank(&self, rank: Rank) {
        let _ = self.rank.set(rank);
    }
}

/// Changes what is logged while a process runs.
#[derive(Clone)]
pub struct Filter(Arc<dyn Fn(Targets) + Send + Sync>);

impl Filter {
    /// For processes whose logs are somebody else's: settings are looked at, and change nothing.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(drop))
    }

    /// From now on what these settings say is logged.
    pub fn set(&self, settings: &LogSettings) -> Result<(), SettingsError> {
        self.0(parsed(settings)?);
        Ok(())
    }
}

fn parsed(settings: &LogSettings) -> Result<Targets, SettingsError> {
    let filter: Targets =
        settings.filter.parse().map_err(|error: tracing_subscriber::filter::ParseError| {
            SettingsError::LogFilter { filter: settings.filter.clone(), reason: error.to_string() }
        })?;
    Ok(filter.with_target(ALWAYS, LevelFilter::WARN))
}

/// Starts logging of this process. Where a subscriber is set already (a host program's), that one stays.
pub fn init(role: Role, settings: &LogSettings) -> Result<(LogIdentity, Filter), SettingsError> {
    let identity = LogIdentity::new(role);
    let (filter, handle) = reload::Layer::new(parsed(settings)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(Lines { identity: identity.clone(), json: settings.json });
    // An error means that the process has a subscriber already: it is not ours to replace. Then the handle changes nothing.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(lines.with_filter(filter)));
    let set = move |filter| drop(handle.reload(filter));
    Ok((identity, Filter(Arc::new(set))))
}

/// Writes text as one line: control characters are escaped. A peer's reason with a newline could look like further lines of the log.
pub(crate) struct OneLine<W>(pub(crate) W);

impl<W: fmt::Write> fmt::Write for OneLine<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(char::is_control) {
            let plain = part.trim_end_matches(char::is_control);
            self.0.write_str(plain)?;
            write!(self.0, "{}", part[plain.len()..].escape_debug())?;
        }
        Ok(())
    }
}

struct Lines {
    identity: LogIdentity,
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.json {
            return self.write_json(&mut writer, event);
        }
        SystemTime.format_time(&mut writer)?;
        let metadata = event.metadata();
        write!(writer, " {:>5} {}", metadata.level(), self.identity.role)?;
        if let Some(rank) = self.identity.rank.get() {
            write!(writer, " {rank}")?;
        }
        write!(writer, " {}: ", metadata.target())?;
        context.field_format().format_fields(Writer::new(&mut OneLine(&mut writer)), event)?;
        writeln!(writer)
    }
}

impl Lines {
    fn write_json(&self, writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut line = Map::new();
        line.insert("timestamp".into(), timestamp.into());
        line.insert("level".into(), event.metadata().level().as_str().into());
        line.insert("role".into(), self.identity.role.to_string().into());
        if let Some(rank) = self.identity.rank.get() {
            line.insert("rank".into(), rank.0.into());
        }
        line.insert("target".into(), event.metadata().target().into());
        let mut fields = JsonFields(Map::new());
        event.record(&mut fields);
        line.insert("fields".into(), Value::Object(fields.0));
        writeln!(writer, "{}", Value::Object(line))
    }
}

struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Loaded;
    use proto_common::config::{SecurityMode, SecuritySettings, Settings};
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged_by(json: bool, filter: Targets, log: impl FnOnce()) -> String {
        let (sink, identity) = (Sink::default(), LogIdentity::new(Role::Worker));
        identity.set_rank(Rank(3));
        let writer = sink.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .event_format(Lines { identity, json });
        tracing::subscriber::with_default(Registry::default().with(lines.with_filter(filter)), log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn logged(json: bool) -> String {
        logged_by(json, "info".parse().unwrap(), || tracing::info!(round = 7u64, "done"))
    }

    /// What `Loaded::log` says under this filter.
    fn said_of(security: SecuritySettings, filter: &str) -> String {
        let log = LogSettings { filter: filter.into(), ..LogSettings::default() };
        let filter = parsed(&log).unwrap();
        let settings = Settings { security, log, ..Settings::default() };
        let loaded = Loaded { settings, files: vec![], warnings: vec!["x".into()], origins: BTreeMap::new() };
        logged_by(false, filter, || loaded.log())
    }

    #[test]
    fn that_nobody_is_authenticated_is_said_once_whatever_is_logged() {
        let off = SecuritySettings { mode: SecurityMode::Off, ..SecuritySettings::default() };
        let text = "security.mode = \"off\": peers beyond loopback are not authenticated";
        for filter in ["error", "off", "daemon=off", "daemon::always=off"] {
            let said = said_of(off.clone(), filter);
            assert!(said.lines().count() == 1 && said.trim_end().ends_with(text), "{filter}: {said}");
        }
        for filter in ["info", "trace"] {
            assert_eq!(said_of(off.clone(), filter).matches("not authenticated").count(), 1, "{filter}");
        }
        let whole = SecuritySettings { ca: Some("ca.pem".into()), ..off };
        assert!(said_of(whole, "error").contains("not authenticated; security.ca is set, and ignored"));
        assert_eq!(said_of(SecuritySettings::default(), "error"), "");
    }

    #[test]
    fn a_text_line_names_role_and_rank() {
        let line = logged(false);
        assert!(line.contains(" INFO worker 3 daemon::logging::tests: done round=7"), "{line}");
    }

    #[test]
    fn a_peer_s_text_forges_no_lines() {
        let reason = "no memory\n2026-01-01T00:00:00Z  INFO scheduler x: all is well\r\x1b[2K";
        for json in [false, true] {
            let text = logged_by(json, "info".parse().unwrap(), || {
                tracing::info!(%reason, other = reason, "server 0 failed: {reason}");
            });
            assert_eq!(text.matches(char::is_control).collect::<Vec<_>>(), ["\n"], "{text:?}");
            assert_eq!(text.matches("no memory\\n2026").count(), 3, "{text}");
        }
    }

    #[test]
    fn a_json_line_is_one_object() {
        let line: Value = serde_json::from_str(&logged(true)).unwrap();
        assert_eq!((&line["role"], &line["rank"]), (&"worker".into(), &3.into()));
        assert_eq!(line["fields"]["round"], 7);
        assert_eq!(line["fields"]["message"], "done");
    }

    #[test]
    fn a_filter_changes_while_the_process_runs() {
        let (sink, identity) = (Sink::default(), LogIdentity::new(Role::Worker));
        let writer = sink.clone();
        let (filter, handle) = reload::Layer::new("error".parse::<Targets>().unwrap());
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .event_format(Lines { identity, json: false });
        let subscriber = Registry::default().with(lines.with_filter(filter));
        let filter = Filter(Arc::new(move |filter| handle.reload(filter).unwrap()));
        tracing::subscriber::with_default(subscriber, || {
            for (text, word) in
                [("error", "first"), ("daemon=debug", "second"), ("info,daemon::logging=off", "third")]
            {
                let settings = LogSettings { filter: text.into(), ..LogSettings::default() };
                filter.set(&settings).unwrap();
                tracing::debug!("{word}");
            }
        });
        let bytes = sink.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.lines().count() == 1 && text.trim_end().ends_with("second"), "{text}");
    }

    #[test]
    fn a_wrong_filter_is_a_settings_error() {
        let settings = LogSettings { filter: "info,=x=y".into(), ..LogSettings::default() };
        assert!(init(Role::Worker, &settings).err().unwrap().to_string().contains("log.filter"));
    }
}
