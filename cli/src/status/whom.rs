//! Which scheduler is asked: flags that `status` and `top` share.

use clap::Args;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use std::path::PathBuf;

/// Which scheduler is asked.
#[derive(Args, Debug)]
pub(crate) struct Whom {
    /// The scheduler's HTTP address. It logs it when it starts, and writes it to its --port-file. Without
    /// this flag the setting node.http counts, if it names a port.
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
            let text = "the scheduler's HTTP address is not known; give it with --scheduler-http (the scheduler \
                    logs it when it starts)";
            Failure::message(ExitCode::Usage, text)
        };
        if let Some(path) = &self.port_file {
            let text = std::fs::read_to_string(path).map_err(|error| {
                let text = format!("cannot read the port file {}: {error}", path.display());
                Failure::message(ExitCode::Io, text)
            })?;
            let http = text.lines().find_map(|line| line.strip_prefix("http="));
            return http.filter(|http| !http.is_empty()).map(str::to_owned).ok_or_else(unknown);
        }
        let env = daemon::process::environment();
        let loaded = daemon::settings::load_settings(proto_common::ids::Role::Scheduler, &env, None, &[])
            .code(ExitCode::Config)?;
        let http = loaded.settings.node.http;
        if http.is_empty() || http.ends_with(":0") {
            return Err(unknown());
        }
        Ok(http)
    }
}
