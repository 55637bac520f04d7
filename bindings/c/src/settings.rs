//! Settings from C programs: names and values that override the environment and a file. It must not know which
//! settings exist.

use crate::border::{lock, make, object, text};
use crate::error::{Failure, GradwireCode, free, guard};
use daemon::settings::{Loaded, Override, load_settings};
use proto_common::ids::Role;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Mutex;

/// The settings for a client, server or scheduler. In increasing priority: defaults, settings file, `DMLC_*` and
/// `GRADWIRE_*` variables of the environment, values set here. Free them with `gradwire_settings_free`. They may be
/// used several times, and by several threads.
#[derive(Debug, Default)]
pub struct GradwireSettings(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    file: Option<PathBuf>,
    variables: Vec<(String, String)>,
    without_environment: bool,
    overrides: Vec<Override>,
    logs: bool,
}

impl GradwireSettings {
    /// Reads all sources and validates them for the role. Logging starts here if it was requested.
    pub(crate) fn load(&self, role: Role) -> Result<Loaded, Failure> {
        let given = lock(&self.0);
        // What was given by name comes first: the first of two wins.
        let mut environment = given.variables.clone();
        if !given.without_environment {
            environment.extend(daemon::process::environment());
        }
        let mut seen = std::collections::BTreeSet::new();
        environment.retain(|(name, _)| seen.insert(name.clone()));
        let loaded = load_settings(role, &environment, given.file.as_deref(), &given.overrides)?;
        if given.logs {
            daemon::logging::init(role, &loaded.settings.log)?;
            loaded.log();
        }
        Ok(loaded)
    }
}

/// The settings that C passed, or empty ones.
pub(crate) fn load(settings: Option<&GradwireSettings>, role: Role) -> Result<Loaded, Failure> {
    settings.unwrap_or(&GradwireSettings::default()).load(role)
}

/// New settings: from the environment and a settings file, if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_new(
    settings: Option<&mut MaybeUninit<Option<Box<GradwireSettings>>>>,
) -> GradwireCode {
    guard(|| make(settings, "settings", || Ok(GradwireSettings::default())))
}

/// Sets one setting by its dotted name, such as `scheduler.port`, to a value as in a settings file, without quotes.
/// `gradwire config` lists all settings. Invalid names and values are reported when something is started with them.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_set(
    settings: Option<&GradwireSettings>,
    name: *const c_char,
    value: *const c_char,
) -> GradwireCode {
    guard(|| {
        let (name, value) = (text(name, "name")?, text(value, "value")?);
        let mut given = lock(&object(settings, "settings")?.0);
        given.overrides.push(Override::new(format!("the program's setting {name}"), name, value));
        Ok(())
    })
}

/// Names the settings file, which must exist. Without this call the default locations are searched.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_file(
    settings: Option<&GradwireSettings>,
    path: *const c_char,
) -> GradwireCode {
    guard(|| {
        let path = text(path, "path")?.into();
        lock(&object(settings, "settings")?.0).file = Some(path);
        Ok(())
    })
}

/// Adds an environment variable, such as `DMLC_PS_ROOT_URI`, for these settings only. It overrides the process's own
/// variable.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_variable(
    settings: Option<&GradwireSettings>,
    name: *const c_char,
    value: *const c_char,
) -> GradwireCode {
    guard(|| {
        let pair = (text(name, "name")?.to_owned(), text(value, "value")?.to_owned());
        lock(&object(settings, "settings")?.0).variables.insert(0, pair);
        Ok(())
    })
}

/// Ignores the process's environment: only the file and values set here count.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_without_environment(settings: Option<&GradwireSettings>) -> GradwireCode {
    guard(|| {
        lock(&object(settings, "settings")?.0).without_environment = true;
        Ok(())
    })
}

/// Enables logging to stderr according to `log.filter` and `log.json`, from the first start with these settings on.
/// Without it the library logs nothing. Logging is configured once per process, by the first settings that enable it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_log(settings: Option<&GradwireSettings>) -> GradwireCode {
    guard(|| {
        lock(&object(settings, "settings")?.0).logs = true;
        Ok(())
    })
}

/// Frees settings. Null is allowed. Clients and roles that were started with them continue.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_settings_free(settings: Option<Box<GradwireSettings>>) {
    free(settings);
}
