//! `gradwire checkpoint`: what lies in a place of checkpoints. It reads files and removes them; asking a cluster for one is
//! `save`'s business.

use ::checkpoint::{
    CheckpointError, Listed, Manifest, find, is_name_at, list, list_all as list_place, remove, utc, verify,
};
use clap::{Args, Subcommand};
use daemon::exit::Failure;
use proto_common::error::ExitCode;
use proto_common::plan::size;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};

/// Inspect checkpoints (list, show, verify, delete), or request one from a running job (save)
///
/// DIR is the value of checkpoint.directory. Each job has its own checkpoints there: job 7 has job-7/NAME.
#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List all checkpoints, the oldest first.
    List(Place),
    /// Show the tensors, tables and parts of a checkpoint.
    Show(One),
    /// Read one checkpoint, or all complete ones, and verify every checksum.
    Verify(Several),
    /// Delete a checkpoint, complete or not.
    Delete(One),
    /// Request a checkpoint of a future round from a running job, and print its name when it is complete.
    Save(Box<crate::save::SaveArgs>),
}

#[derive(Args, Debug)]
struct Place {
    /// Directory or URL of the checkpoints.
    dir: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct One {
    #[command(flatten)]
    place: Place,
    /// Name of the checkpoint, as `list` shows it.
    name: String,
}

#[derive(Args, Debug)]
struct Several {
    #[command(flatten)]
    place: Place,
    /// Name of the checkpoint. Default: all complete ones.
    name: Option<String>,
}

pub(crate) fn run(args: &CheckpointArgs) -> Result<(), anyhow::Error> {
    let mut damaged = 0;
    let text = match &args.what {
        What::List(place) => list_all(place),
        What::Show(one) => show(one),
        What::Verify(several) => verify_several(several).map(|(text, found)| {
            damaged = found;
            text
        }),
        What::Delete(one) => delete(one),
        What::Save(args) => return crate::save::run(args),
    };
    let text = text.map_err(|error| Failure::new(error.exit_code(), error))?;
    crate::common::print(&text)?;
    match damaged {
        0 => Ok(()),
        _ => Err(Failure::message(ExitCode::BadData, format!("damaged checkpoints: {damaged}")).into()),
    }
}

type Text = Result<String, CheckpointError>;

/// The place, which is to be there: who looks at another one than is written to would see none, and believe it.
fn check_there(dir: &str) -> Result<(), CheckpointError> {
    if dir.is_empty() {
        return Err(CheckpointError::BadPlace { place: "\"\"".into(), why: "it is empty".into() });
    }
    if !dir.contains("://") {
        let failed = |source| CheckpointError::Io { what: "list", file: dir.into(), source };
        fs::read_dir(dir).map_err(failed)?;
    }
    Ok(())
}

/// The same for everything that takes a name.
fn checked(name: &str) -> Result<&str, CheckpointError> {
    if is_name_at(name) { Ok(name) } else { Err(CheckpointError::BadName { name: name.into() }) }
}

fn list_all(place: &Place) -> Text {
    check_there(&place.dir)?;
    let all = list_place(&place.dir)?;
    if place.json {
        return Ok(Value::from(all.iter().map(summary).collect::<Vec<_>>()).to_string());
    }
    let mut text = format!(
        "{:<24} {:>10} {:>10} {:>8} {:>6}  {}\n",
        "name", "round", "size", "tensors", "parts", "written"
    );
    for one in &all {
        match &one.manifest {
            Ok(Some(manifest)) => {
                let (round, size, time) = (manifest.round, size(manifest.bytes()), utc(manifest.unix_ms));
                let (tensors, parts) = (manifest.tensors.len(), manifest.parts.len());
                let _ =
                    writeln!(text, "{:<24} {round:>10} {size:>10} {tensors:>8} {parts:>6}  {time}", one.name);
            }
            Ok(None) => {
                let _ = writeln!(text, "{:<24} {:>10} {:>10}  incomplete", one.name, "-", size(one.bytes));
            }
            Err(error) => {
                let _ = writeln!(text, "{:<24} {:>10} {:>10}  {error}", one.name, "-", size(one.bytes));
            }
        }
    }
    if all.is_empty() {
        text = format!("no checkpoints in {}\n", place.dir);
    }
    Ok(text)
}

fn summary(one: &Listed) -> Value {
    let mut value = json!({ "name": one.name, "bytes": one.bytes, "complete": one.complete().is_some() });
    match &one.manifest {
        Ok(Some(manifest)) => {
            value["round"] = manifest.round.into();
            value["unix_ms"] = manifest.unix_ms.into();
            value["tensors"] = manifest.tensors.len().into();
            value["parts"] = manifest.parts.len().into();
        }
        Ok(None) => {}
        Err(error) => value["error"] = error.to_string().into(),
    }
    value
}

fn manifest_of(dir: &str, name: &str) -> Result<Manifest, CheckpointError> {
    let missing = || CheckpointError::Missing { name: name.into(), place: dir.into() };
    let (store, own) = find(dir, name)?;
    list(&*store)?.into_iter().find(|one| one.name == own).ok_or_else(missing)?.manifest?.ok_or_else(missing)
}

fn show(one: &One) -> Text {
    check_there(&one.place.dir)?;
    let manifest = manifest_of(&one.place.dir, checked(&one.name)?)?;
    if one.place.json {
        return Ok(serde_json::to_value(&manifest).unwrap_or_default().to_string());
    }
    let shape = &manifest.shape;
    let mut text = format!(
        "{}: round {}, {}, {} in {} parts, job {}\nwritten by {} servers of {} lanes for {} workers, chunks of {} bytes\n\n",
        one.name,
        manifest.round,
        utc(manifest.unix_ms),
        size(manifest.bytes()),
        manifest.parts.len(),
        manifest.job,
        shape.servers,
        shape.lanes,
        shape.workers,
        shape.chunk_bytes
    );
    let _ = writeln!(text, "{:>20} {:>6} {:>14} {:>10}  name", "key", "dtype", "elements", "version");
    for tensor in &manifest.tensors {
        let (spec, version) = (&tensor.spec, tensor.version);
        let (key, dtype, elements, name) = (spec.key.0, spec.dtype.to_string(), spec.elements, &spec.name);
        let _ = writeln!(text, "{key:>20} {dtype:>6} {elements:>14} {version:>10}  {name}");
    }
    for table in &manifest.tables {
        let _ = writeln!(text, "table {} of width {}: {} rows", table.spec.key, table.spec.width, table.rows);
    }
    for part in &manifest.parts {
        let _ = writeln!(text, "part {} {} crc32c {:08x}", part.file, size(part.bytes), part.crc32c);
    }
    Ok(text)
}

/// A line for each, and how many are damaged.
fn verify_several(several: &Several) -> Result<(String, usize), CheckpointError> {
    let dir = &several.place.dir;
    check_there(dir)?;
    let names: Vec<String> = match &several.name {
        Some(name) => vec![checked(name)?.to_owned()],
        // One whose manifest cannot be read is to be told, too.
        None => {
            let all = list_place(dir)?.into_iter();
            all.filter(|listed| !matches!(listed.manifest, Ok(None))).map(|listed| listed.name).collect()
        }
    };
    let (mut text, mut all, mut damaged) = (String::new(), Vec::new(), 0);
    for name in names {
        let (store, own) = find(dir, &name)?;
        let done = match verify(&store, &own, |done, total| progress(&name, done, total)) {
            Ok(done) => done,
            // Which of the others are sound is what is asked for; and programs read what is wrong with this one.
            Err(error) if several.name.is_none() || (several.place.json && is_damage(&error)) => {
                let _ = writeln!(text, "{name}: {error}");
                all.push(json!({ "name": name, "sound": false, "why": error.to_string() }));
                damaged += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let _ = writeln!(
            text,
            "{name}: {} in {} parts, all checksums match, no chunk is missing",
            size(done.bytes),
            done.parts
        );
        all.push(json!({ "name": name, "bytes": done.bytes, "parts": done.parts, "sound": true }));
    }
    if several.place.json {
        return Ok((Value::from(all).to_string(), damaged));
    }
    if text.is_empty() {
        text = format!("no complete checkpoint in {}", several.place.dir);
    }
    Ok((text, damaged))
}

fn is_damage(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Corrupt { .. } | CheckpointError::Foreign { .. })
}

fn progress(name: &str, done: u64, total: u64) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        let end = if done == total { "\n" } else { "\r" };
        // Somebody who does not look at it misses nothing.
        let _ = write!(stderr, "{name}: {} of {}{end}", size(done), size(total));
    }
}

fn delete(one: &One) -> Text {
    check_there(&one.place.dir)?;
    let (store, wanted) = find(&one.place.dir, checked(&one.name)?)?;
    if !store.names()?.contains(&wanted) {
        return Err(CheckpointError::Missing { name: one.name.clone(), place: one.place.dir.clone() });
    }
    let is_gone = remove(&*store, &wanted)?;
    Ok(if one.place.json {
        json!({ "deleted": one.name, "directory_stays": !is_gone }).to_string()
    } else if !is_gone {
        format!("{} is deleted; its directory remains, because it contains other files", one.name)
    } else {
        format!("{} is deleted", one.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_and_what_is_no_name_are_said_alike_by_all() {
        let place = std::env::temp_dir().join(format!("gradwire-cli-{}", std::process::id()));
        let at = |dir: &str| Place { dir: dir.into(), json: true };
        let all = |dir: &str, name: &str| {
            let several = Several { place: at(dir), name: Some(name.into()) };
            [
                show(&One { place: at(dir), name: name.into() }).unwrap_err(),
                delete(&One { place: at(dir), name: name.into() }).unwrap_err(),
                verify_several(&several).unwrap_err(),
            ]
        };
        let gone = place.display().to_string();
        let nowhere = [list_all(&at(&gone)).unwrap_err()].into_iter().chain(all(&gone, "round-000000001"));
        for error in nowhere {
            assert_eq!(error.exit_code(), ExitCode::Io, "{error}");
            assert!(error.to_string().contains(&gone), "{error}");
        }
        assert_eq!(list_all(&at("")).unwrap_err().exit_code(), ExitCode::Usage);
        let damaged = place.join("round-000000001");
        fs::create_dir_all(&damaged).unwrap();
        fs::write(damaged.join("manifest.json"), "cut").unwrap();
        let codes = all(&gone, "../x").map(|error| error.exit_code());
        let one = Several { place: at(&gone), name: Some("round-000000001".into()) };
        let verified = verify_several(&one);
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(codes, [ExitCode::Usage; 3]);
        let (text, count) = verified.unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((count, &json[0]["sound"]), (1, &Value::Bool(false)));
    }

    #[test]
    fn checkpoints_of_all_jobs_of_a_place_are_listed_verified_and_deleted_by_their_names() {
        use ::checkpoint::{Manifest, Shape, commit, name_of_job, open, open_job, round_name};
        let place = std::env::temp_dir().join(format!("gradwire-cli-jobs-{}", std::process::id()));
        let dir = place.display().to_string();
        let write = |store: &dyn ::checkpoint::Store, round| {
            commit(store, &Manifest::new(&round_name(round), 1, round, round, Shape::default())).unwrap();
        };
        write(&*open(&dir).unwrap(), 9);
        [7, 12].iter().for_each(|job| write(&*open_job(&dir, *job).unwrap(), 5));
        let at = || Place { dir: dir.clone(), json: true };
        let names = || {
            let listed: Value = serde_json::from_str(&list_all(&at()).unwrap()).unwrap();
            listed
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let [of_7, of_12] = [7, 12].map(|job| name_of_job(job, &round_name(5)));
        let listed = names();
        let shown = show(&One { place: at(), name: of_7.clone() }).unwrap();
        let verified = verify_several(&Several { place: at(), name: None }).unwrap();
        delete(&One { place: at(), name: of_7.clone() }).unwrap();
        let left = names();
        let gone = delete(&One { place: at(), name: of_7.clone() }).unwrap_err();
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(listed, [round_name(9), of_7.clone(), of_12.clone()]);
        assert!(shown.contains("\"round\":5"), "{shown}");
        assert!(verified.1 == 0 && verified.0.matches("true").count() == 3, "{verified:?}");
        assert_eq!(left, [round_name(9), of_12]);
        assert!(gone.to_string().contains(&of_7), "{gone}");
    }

    #[test]
    fn sizes_are_those_of_people() {
        assert_eq!([size(0), size(1023), size(1536), size(5 << 40)], ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]);
    }
}
