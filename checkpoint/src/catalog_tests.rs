//! What is removed of a place of checkpoints, and what is not, whoever put it there. How files are read is `tests`' business.

use super::tests::{store_in, write};
use super::*;
use proto_common::error::ExitCode;
use std::fs;
use std::sync::Arc;

const PART: &str = "part-s0000-l00-0000000000000001-0001.safetensors";

/// Something of a checkpoint that is not complete.
fn leftover(store: &Arc<dyn Store>, round: u64, file: &str) {
    store.put_bytes(&round_name(round), file, b"whole").unwrap();
    store.put_bytes(&round_name(round), &format!(".tmp-{file}"), b"half").unwrap();
}

#[test]
fn what_others_have_put_there_stays() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    let notes = ["round-0-notes", "round-000000000", "round-7", "round-000000001", "notes"];
    for name in notes {
        fs::create_dir(place.path().join(name)).unwrap();
        fs::write(place.path().join(name).join("notes.txt"), "x").unwrap();
    }
    write(&store, 1, 1);
    leftover(&store, 2, PART);
    fs::create_dir(place.path().join(round_name(2)).join("inner")).unwrap();
    leftover(&store, 3, PART);
    let newest = write(&store, 4, 1);
    fs::write(place.path().join(&newest.name).join("why.md"), "x").unwrap();
    leftover(&store, 4, PART);
    let removed = retain(&*store, &newest, 1, |_| false, |_| false).unwrap();
    assert_eq!(removed.gone, [round_name(3)]);
    assert_eq!(removed.left, [round_name(1), round_name(2)]);
    assert!(removed.failed.is_none());
    for name in notes {
        assert_eq!(store.files(name).unwrap(), [("notes.txt".into(), 1)], "{name}");
    }
    assert!(place.path().join(round_name(2)).join("inner").is_dir());
    let files: Vec<String> = store.files(&newest.name).unwrap().into_iter().map(|(file, _)| file).collect();
    assert_eq!(files, ["manifest.json", "part-0.safetensors", "why.md"]);
    let again = retain(&*store, &newest, 1, |_| false, |_| false).unwrap();
    assert!(again.gone.is_empty() && again.left.is_empty(), "said once: {again:?}");
    for name in ["round-0-notes", "round-7", "round-000000001-notes", "round-+00000001"] {
        assert!(matches!(remove(&*store, name), Err(CheckpointError::BadName { .. })), "{name}");
    }
}

#[test]
fn what_is_given_up_or_left_goes_and_what_is_complete_or_written_does_not() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    let complete = write(&store, 1, 1);
    let parts = [complete.parts[0].file.clone(), PART.into(), "../x".into()];
    store.put_bytes(&complete.name, PART, b"whole").unwrap();
    discard(&*store, &complete.name, &parts).unwrap();
    assert!(verify(&store, &complete.name, |_, _| ()).is_ok());
    assert_eq!(store.files(&complete.name).unwrap().len(), 2, "what was whole of another try is gone");

    leftover(&store, 2, PART);
    discard(&*store, &round_name(2), &[PART.into()]).unwrap();
    let left = [(format!(".tmp-{PART}"), 4)];
    assert_eq!(store.files(&round_name(2)).unwrap(), left, "it may be written to");

    leftover(&store, 3, PART);
    leftover(&store, 4, PART);
    leftover(&store, 5, PART);
    let removed = sweep(&*store, 5, |name| name == round_name(3)).unwrap();
    assert_eq!(removed.gone, [round_name(2), round_name(4)]);
    assert_eq!(store.names().unwrap(), [1, 3, 5].map(round_name));
}

#[test]
fn the_newest_cannot_be_said_where_one_cannot_be_read() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    assert!(newest(&*store).unwrap().is_none());
    let (first, second) = (write(&store, 1, 1), write(&store, 2, 1));
    let path = place.path().join(&second.name).join("manifest.json");
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = newest(&*store).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::BadData);
    let text = error.to_string();
    let path = path.display().to_string();
    for words in [path.as_str(), "checkpoint.restore", "gradwire checkpoint delete"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(newest_readable(&*store).unwrap().unwrap().name, first.name);
    remove(&*store, &second.name).unwrap();
    assert_eq!(newest(&*store).unwrap().unwrap().name, first.name);
}

/// As where an archive is not mounted. Nobody who asks is told of an older one, or of none.
#[test]
fn a_link_that_leads_nowhere_may_be_the_newest() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    let (old, name) = (write(&store, 1, 1), round_name(2));
    let (link, archive) = (place.path().join(&name), place.path().join("archive"));
    std::os::unix::fs::symlink(&archive, &link).unwrap();
    let error = newest(&*store).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Io);
    assert!(error.to_string().contains(&link.display().to_string()), "{error}");
    assert_eq!(newest_readable(&*store).unwrap().unwrap().name, old.name);
    assert!(Checkpoint::open(&store, &name).unwrap_err().to_string().contains("cannot follow the link"));
    assert!(sweep(&*store, 9, |_| false).unwrap().gone.is_empty() && link.is_symlink());
    // It is mounted, and empty; then its manifest lies elsewhere, too; then it is no checkpoint any more.
    fs::create_dir(&archive).unwrap();
    assert_eq!(newest(&*store).unwrap().unwrap().name, old.name);
    std::os::unix::fs::symlink(place.path().join("manifests"), archive.join("manifest.json")).unwrap();
    assert_eq!(newest(&*store).unwrap_err().exit_code(), ExitCode::Io);
    fs::remove_file(&link).unwrap();
    assert_eq!(newest(&*store).unwrap().unwrap().name, old.name);
    // What cannot be looked at for another reason.
    std::os::unix::fs::symlink(&link, &link).unwrap();
    assert_eq!(newest(&*store).unwrap_err().exit_code(), ExitCode::Io);
    assert_eq!(newest_readable(&*store).unwrap().unwrap().name, old.name);
    leftover(&store, 3, PART);
    assert_eq!(sweep(&*store, 9, |_| false).unwrap().gone, [round_name(3)]);
    let next = write(&store, 4, 1);
    assert_eq!(retain(&*store, &next, 1, |_| false, |_| false).unwrap().gone, [old.name]);
}

#[test]
fn what_was_begun_or_is_complete_since_a_sweep_began_stays() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    [1, 2, 3].iter().for_each(|round| leftover(&store, *round, PART));
    let is_begun = std::cell::Cell::new(false);
    let removed = sweep(&*store, 9, |name| {
        if name == round_name(1) {
            write(&store, 2, 1);
            is_begun.set(true);
        }
        is_begun.get() && name == round_name(3)
    });
    assert_eq!(removed.unwrap().gone, [round_name(1)]);
    assert!(verify(&store, &round_name(2), |_, _| ()).is_ok());
    assert_eq!(store.files(&round_name(3)).unwrap().len(), 2);
    // A round that is written once more, after the job went back to an earlier one.
    let newest = write(&store, 4, 1);
    let removed = retain(&*store, &newest, 1, |_| false, |name| name == round_name(2)).unwrap();
    assert_eq!(removed.gone, [round_name(3)]);
    assert_eq!(store.names().unwrap(), [2, 4].map(round_name));
}

#[test]
fn a_manifest_that_is_no_file_is_an_error_and_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    let path = place.path().join(round_name(1));
    fs::create_dir(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path.join("manifest.json")).status().unwrap().success());
    assert!(matches!(&list(&*store).unwrap()[0].manifest, Err(CheckpointError::Corrupt { .. })));
    let error = newest(&*store).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::BadData, "{error}");
}

#[test]
fn an_earlier_one_that_looks_later_removes_no_newer_one() {
    let place = tempfile::tempdir().unwrap();
    let store = store_in(place.path());
    let (old, first, second) = (write(&store, 1, 1), write(&store, 2, 1), write(&store, 3, 1));
    assert_eq!(retain(&*store, &first, 1, |_| false, |_| false).unwrap().gone, [old.name]);
    assert_eq!(store.names().unwrap(), [&*first.name, &*second.name]);
    assert_eq!(retain(&*store, &second, 1, |_| false, |_| false).unwrap().gone, [first.name]);
}
