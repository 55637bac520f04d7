//! SIGHUP: a daemon reads its settings again, takes what may change while it runs, and names what needs a restart. Settings that
//! cannot be used change nothing. Certificates need no signal: `security` reads them when their files change.

use crate::logging::Filter;
use crate::settings::{Loaded, SettingsError};
use proto_common::config::shown;
use std::collections::BTreeMap;
use std::io;
use tokio::signal::unix::{SignalKind, signal};

/// What may change while a process runs.
const LIVE: [&str; 1] = ["log.filter"];

/// Reads the settings as they were read at the start.
pub type Read = Box<dyn Fn() -> Result<Loaded, SettingsError> + Send>;

type Values = BTreeMap<String, String>;

/// What needs a restart: name, in force, and said now.
type Waiting = Vec<(String, String, String)>;

/// From now on SIGHUP reads the settings again. `loaded`: those in force. Needs a tokio runtime.
pub fn on_hangup(loaded: &Loaded, read: Read, filter: Filter) -> io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    let mut in_force: Values = loaded.values().into_iter().collect();
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match read().and_then(|next| take(&mut in_force, &next, &filter)) {
                Ok((taken, waiting)) => tell(&taken, &waiting),
                Err(error) => {
                    tracing::error!(%error, "SIGHUP: invalid settings; keeping the current ones");
                }
            }
        }
    });
    Ok(())
}

/// Takes what may change.
fn take(
    in_force: &mut Values,
    next: &Loaded,
    filter: &Filter,
) -> Result<(Vec<&'static str>, Waiting), SettingsError> {
    let (mut taken, mut waiting) = (Vec::new(), Waiting::new());
    for (key, now) in next.values() {
        let before = in_force.get(&key).cloned().unwrap_or_default();
        if now == before {
            continue;
        }
        match LIVE.into_iter().find(|live| *live == key) {
            Some(live) => {
                filter.set(&next.settings.log)?;
                in_force.insert(key, now);
                taken.push(live);
            }
            // Its text may be the key itself.
            None if key == "security.key" => waiting.push((key, "..".into(), "..".into())),
            None => waiting.push((key, shown(&before).to_owned(), shown(&now).to_owned())),
        }
    }
    Ok((taken, waiting))
}

fn tell(taken: &[&str], waiting: &Waiting) {
    if taken.is_empty() && waiting.is_empty() {
        tracing::info!("SIGHUP: no setting has changed");
    }
    for key in taken {
        tracing::info!("SIGHUP: applied the new value of {key}");
    }
    for (key, before, now) in waiting {
        tracing::warn!("SIGHUP: {key} remains {before:?}: restart this process to apply {now:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Override, load_settings};
    use proto_common::ids::Role;

    fn loaded(pairs: &[(&str, &str)]) -> Loaded {
        let said: Vec<_> = pairs.iter().map(|(key, value)| Override::new("--set", *key, *value)).collect();
        load_settings(Role::Server, &[("GRADWIRE_CONFIG".into(), "/dev/null".into())], None, &said).unwrap()
    }

    #[test]
    fn what_may_change_is_taken_once_and_the_rest_is_named_each_time() {
        let mut in_force: Values = loaded(&[]).values().into_iter().collect();
        let filter = Filter::none();
        let next = loaded(&[("log.filter", "debug"), ("cluster.lanes", "2")]);
        let waiting = vec![("cluster.lanes".to_owned(), "1".to_owned(), "2".to_owned())];
        let took = take(&mut in_force, &next, &filter).unwrap();
        assert_eq!(took, (vec!["log.filter"], waiting.clone()));
        assert_eq!(take(&mut in_force, &next, &filter).unwrap(), (vec![], waiting));
        let files = [("log.filter", "debug"), ("security.ca", "a"), ("security.key", "k")];
        let bundle = [("security.certificate", "-----BEGIN PRIVATE KEY-----\nsecret")];
        let (_, told) = take(&mut in_force, &loaded(&[&files[..], &bundle].concat()), &filter).unwrap();
        let told = format!("{told:?}");
        assert!(told.contains("(text, not shown)") && !told.contains("secret"), "{told}");
        let wrong = loaded(&[("log.filter", "=x=")]);
        assert!(take(&mut in_force, &wrong, &filter).is_err());
        assert_eq!(in_force["log.filter"], "debug");
    }
}
