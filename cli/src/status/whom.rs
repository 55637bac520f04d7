//! Which scheduler is asked: flags that `status` and `top` share.

use clap::Args;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::{SettingsError, load_settings, service_file};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use std::path::{Path, PathBuf};

/// Which scheduler is asked.
#[derive(Args, Debug)]
pub(crate) struct Whom {
    /// The scheduler's HTTP address, which it logs at its start and writes to its --port-file. Default: the setting node.http, if it
    /// names a port; otherwise the address of the scheduler that systemd starts on this host (/etc/gradwire/scheduler.toml).
    #[arg(long, value_name = "HOST:PORT")]
    scheduler_http: Option<String>,
    /// Read the address from the scheduler's --port-file.
    #[arg(long, value_name = "FILE", conflicts_with = "scheduler_http")]
    port_file: Option<PathBuf>,
}

impl Whom {
    /// Does the command line say it?
    pub(crate) fn is_given(&self) -> bool {
        self.scheduler_http.is_some() || self.port_file.is_some()
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> Result<String, Failure> {
        if let Some(address) = &self.scheduler_http {
            return Ok(address.clone());
        }
        let unknown = || {
            let text = "unknown HTTP address of the scheduler: give it with --scheduler-http (the scheduler \
                    logs it when it starts)";
            Failure::message(ExitCode::Usage, text)
        };
        if let Some(path) = &self.port_file {
            let text = daemon::small_file::read_text(path).map_err(|error| {
                let text = format!("cannot read the port file {}: {error}", path.display());
                Failure::message(ExitCode::Io, text)
            })?;
            let http = text.lines().find_map(|line| line.strip_prefix("http="));
            return http.filter(|http| !http.is_empty()).map(str::to_owned).ok_or_else(unknown);
        }
        let env = daemon::process::environment();
        let said = http_of(&env, None).code(ExitCode::Config)?;
        // Looking does the service no harm. A file of its that cannot be used is its own trouble.
        let of_service = || http_of(&env, Some(&service_file(Role::Scheduler))).ok().flatten();
        let http = said.or_else(of_service).filter(|http| !http.is_empty() && !http.ends_with(":0"));
        http.ok_or_else(unknown)
    }
}

/// The HTTP address of a scheduler with the settings of this file, if somebody says one.
fn http_of(env: &[(String, String)], file: Option<&Path>) -> Result<Option<String>, SettingsError> {
    let loaded = load_settings(Role::Scheduler, env, file, &[])?;
    Ok(loaded.origins.contains_key("node.http").then_some(loaded.settings.node.http))
}
