//! Settings from where daemons have them, with a caller's own on top; logs, where a program wants them.

use crate::error::{Failure, Kind};
use daemon::settings::{Loaded, Override, load_settings};
use proto_common::config::LogSettings;
use proto_common::element::Dtype;
use proto_common::ids::Role;
use proto_common::transport::Driver;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Defaults, files, `DMLC_*`, `GRADWIRE_*`, then these pairs of dotted name and value.
pub(crate) fn load(config: Option<PathBuf>, given: &[(String, String)]) -> Result<Loaded, Failure> {
    let origin = |(key, value): &(String, String)| Override::new(format!("connect({key}=…)"), key, value);
    let overrides: Vec<Override> = given.iter().map(origin).collect();
    let env = daemon::process::environment();
    let loaded = load_settings(Role::Worker, &env, config.as_deref(), &overrides);
    loaded.map_err(|error| Failure::new(Kind::Setting, "setting", error.to_string()))
}

/// All settings, each as dotted name, environment variable and default.
#[pyfunction]
pub(crate) fn settings_reference() -> Vec<(String, String, String)> {
    let lines = daemon::settings::reference().into_iter();
    lines.map(|line| (line.key, line.variable, line.default)).collect()
}

/// The names of all element types: numpy's (or ml_dtypes') and Gradwire's.
#[pyfunction]
pub(crate) fn elements() -> Vec<(&'static str, &'static str)> {
    Dtype::ALL.map(|dtype| (dtype.numpy_name(), dtype.name())).to_vec()
}

/// The names of all transports, in order of preference.
#[pyfunction]
pub(crate) fn transports() -> Vec<&'static str> {
    Driver::ALL.map(Driver::name).to_vec()
}

/// Writes the logs of the library to standard error, filtered by level and module, for example "info" or
/// "warn,fabric=debug". Call it at most once per process.
#[pyfunction]
#[pyo3(signature = (filter = "info", json = false))]
pub(crate) fn enable_logging(filter: &str, json: bool) -> PyResult<()> {
    let settings = LogSettings { filter: filter.to_owned(), json, ..LogSettings::default() };
    let result = daemon::logging::init(Role::Worker, &settings);
    result.map_err(|error| Failure::new(Kind::Setting, "logging", error.to_string()))?;
    Ok(())
}
