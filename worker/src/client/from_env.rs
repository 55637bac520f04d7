//! Joining with the settings that this process was given by its environment. Reads them once, and keeps nothing.

use super::Client;
use crate::error::ClientError;
use daemon::settings::load_settings;
use proto_common::ids::Role;

impl Client {
    /// Joins the cluster that this process's environment names, as [`Client::connect`] does. `gradwire launch` sets that
    /// environment. Settings come from `./gradwire.toml`, or from the file that `GRADWIRE_CONFIG` names. Variables override the
    /// file: `GRADWIRE_SECTION__NAME` for the setting `section.name`, and the `DMLC_*` names of ps-lite.
    pub fn from_env() -> Result<Self, ClientError> {
        let loaded = load_settings(Role::Worker, &daemon::process::environment(), None, &[])?;
        loaded.log();
        Self::connect(loaded.settings)
    }
}
