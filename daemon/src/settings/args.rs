//! The flags that every daemon has. Each only names a setting; meaning, default and bounds stand in
//! `proto_common::config`.

use super::{
    Loaded, Override, PLACEMENTS, SettingsError, driver_words, load_settings, split_address, split_pair,
};
use clap::Args;
use proto_common::config::shown;
use proto_common::ids::Role;
use proto_common::transport::Driver;
use std::path::PathBuf;

/// Flags that every daemon has. Flags override the environment (GRADWIRE_SECTION__NAME, then DMLC_* names),
/// which overrides ./gradwire.toml.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Common options")]
pub struct CommonArgs {
    /// Settings file to read instead of ./gradwire.toml. The variable GRADWIRE_CONFIG does the same.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The scheduler's address, which the scheduler itself binds. Port 0 selects a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub scheduler: Option<String>,
    /// Id of the job. The scheduler refuses processes of other jobs.
    #[arg(long, value_name = "ID")]
    pub job: Option<u64>,
    /// Require this transport and turn the others off. Default: the best transport that both peers have.
    #[arg(long, value_name = "NAME", value_parser = driver_words())]
    pub transport: Option<Driver>,
    /// How contributions of workers are transferred: auto selects a placement for each tensor (see gradwire plan).
    #[arg(long, value_name = "NAME", value_parser = PLACEMENTS)]
    pub placement: Option<String>,
    /// Address to bind for peers. Addresses other than loopback require certificates, or --set security.mode=off.
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<String>,
    /// Address that peers use to reach this process. Default: --bind.
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<String>,
    /// Requested rank. The scheduler refuses the process if the rank is taken.
    #[arg(long, value_name = "RANK")]
    pub rank: Option<u32>,
    /// Address of /metrics, /healthz, /readyz and /status; "off" turns them off.
    #[arg(long, value_name = "HOST:PORT|off")]
    pub http: Option<String>,
    /// Log filter: a level, or levels per module such as info,fabric=debug.
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Log one JSON object per line.
    #[arg(long)]
    pub log_json: bool,
    /// Set a setting by its dotted name, such as deadlines.operation_ms=5000. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl CommonArgs {
    /// The settings of this process: defaults, files, environment and these flags, validated.
    pub fn load(&self, role: Role, env: &[(String, String)]) -> Result<Loaded, SettingsError> {
        self.load_with(role, env, &[])
    }

    /// As [`Self::load`], with the role's own flags on top.
    pub fn load_with(
        &self,
        role: Role,
        env: &[(String, String)],
        own: &[Override],
    ) -> Result<Loaded, SettingsError> {
        let mut overrides = self.overrides()?;
        overrides.extend_from_slice(own);
        load_settings(role, env, self.config.as_deref(), &overrides)
    }

    pub(super) fn overrides(&self) -> Result<Vec<Override>, SettingsError> {
        let mut list = Vec::new();
        for pair in &self.set {
            let (key, value) = split_pair(pair)?;
            // Messages say where a setting came from, and are not to show a key.
            let said = if shown(value) == value { pair.as_str() } else { key };
            list.push(Override::new(format!("--set {said}"), key, value));
        }
        if let Some(address) = &self.scheduler {
            let (host, port) = split_address("--scheduler", address)?;
            list.push(Override::new("--scheduler", "scheduler.host", host));
            list.push(Override::new("--scheduler", "scheduler.port", port.to_string()));
        }
        for (key, value) in self.transport.into_iter().flat_map(Driver::settings) {
            list.push(Override::new("--transport", key, value));
        }
        let http = self.http.as_ref().map(|http| if http == "off" { String::new() } else { http.clone() });
        let plain = [
            ("--job", "job", self.job.map(|job| job.to_string())),
            ("--placement", "transport.placement", self.placement.clone()),
            ("--bind", "node.bind", self.bind.clone()),
            ("--advertise", "node.advertise", self.advertise.clone()),
            ("--rank", "node.rank", self.rank.map(|rank| rank.to_string())),
            ("--http", "node.http", http),
            ("--log", "log.filter", self.log.clone()),
            ("--log-json", "log.json", self.log_json.then(|| "true".to_owned())),
        ];
        list.extend(
            plain.into_iter().filter_map(|(flag, key, value)| Some(Override::new(flag, key, value?))),
        );
        Ok(list)
    }
}
