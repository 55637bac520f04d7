//! The keeper over a real directory: in which order things are done there, and what it does not begin with.

use super::*;
use proto_common::error::ExitCode;
use proto_common::message::PartWritten;
use std::path::Path;

fn settings(place: &Path, keep: u32) -> Settings {
    let mut settings = Settings::default();
    settings.checkpoint.directory = place.display().to_string();
    settings.checkpoint.keep = keep;
    settings.checkpoint.restore = "latest".into();
    settings
}

fn write(round: u64) -> Task {
    let (tensors, tables, parts, restore) = Default::default();
    Task::Write(Box::new(Completed { round, tensors, tables, parts, restore }))
}

#[tokio::test]
async fn tasks_are_done_in_the_order_in_which_they_were_begun() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let (first, second) = (keeper.begin(write(1)), keeper.begin(write(2)));
    let name = |round: u64| Some(Done::Written(round, Ok(checkpoint::round_name(round))));
    // The second one runs first, and waits.
    let second = tokio::spawn(second);
    tokio::task::yield_now().await;
    assert_eq!(first.await, name(1));
    assert_eq!(second.await.unwrap(), name(2));
    assert_eq!(keeper.store.names().unwrap(), [checkpoint::round_name(2)]);
}

#[tokio::test]
async fn a_manifest_does_not_wait_for_what_is_cleared_away() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 0), false).unwrap();
    let keeper = keeper.unwrap();
    let clearing = keeper.begin(Task::Clear(Clearing::Before { round: 1, writing: vec![1], restore: None }));
    let written = tokio::time::timeout(std::time::Duration::from_secs(20), keeper.begin(write(1))).await;
    assert_eq!(written, Ok(Some(Done::Written(1, Ok(checkpoint::round_name(1))))));
    assert_eq!(clearing.await, None);
}

#[tokio::test]
async fn what_a_manifest_is_being_written_for_is_no_leftover() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 0), false).unwrap();
    let keeper = keeper.unwrap();
    let (name, file) =
        (checkpoint::round_name(1), "part-s0000-l00-0000000000000001-0001.safetensors".to_owned());
    keeper.store.put_bytes(&name, &file, b"whole").unwrap();
    let part = PartWritten { round: 1, file: file.clone(), bytes: 5, ..PartWritten::default() };
    let Task::Write(mut completed) = write(1) else { panic!("another task") };
    completed.parts.push(part);
    let written = keeper.begin(Task::Write(completed));
    let files = vec![file.clone()];
    let given_up = keeper.begin(Task::Clear(Clearing::GivenUp { round: 1, files, restore: None }));
    // It runs first, and waits.
    let given_up = tokio::spawn(given_up);
    tokio::task::yield_now().await;
    assert_eq!(written.await, Some(Done::Written(1, Ok(name.clone()))));
    given_up.await.unwrap();
    assert!(keeper.store.files(&name).unwrap().iter().any(|(there, _)| *there == file));
}

#[tokio::test]
async fn who_was_given_up_makes_room_and_what_is_being_written_stays() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let part = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    let names = [1, 2, 3].map(checkpoint::round_name);
    names.iter().for_each(|name| keeper.store.put_bytes(name, &part, b"whole").unwrap());
    let files = vec![part];
    let restore = None;
    keeper.begin(Task::Clear(Clearing::GivenUp { round: 3, files, restore: restore.clone() })).await;
    assert_eq!(keeper.store.names().unwrap(), names[..2]);
    keeper.begin(Task::Clear(Clearing::Before { round: 3, writing: vec![2, 3], restore })).await;
    assert_eq!(keeper.store.names().unwrap(), names[1..2]);
}

#[tokio::test]
async fn what_of_one_that_was_given_up_cannot_be_removed_is_told_and_so_is_what_can() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let file = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    // Of the reasons for which a file stays, one that holds for root, too.
    let stays = place.path().join(checkpoint::round_name(1)).join(&file);
    std::fs::create_dir_all(&stays).unwrap();
    let clearing = Clearing::GivenUp { round: 1, files: vec![file], restore: None };
    let told = keeper.begin(Task::Clear(clearing.clone())).await;
    let Some(Done::Cleared(of, Err(error))) = told else { panic!("{told:?}") };
    assert_eq!(of, clearing);
    assert!(error.contains(&stays.display().to_string()), "{error}");
    std::fs::remove_dir(&stays).unwrap();
    let told = keeper.begin(Task::Clear(clearing.clone())).await;
    assert_eq!(told, Some(Done::Cleared(clearing, Ok(()))));
    assert_eq!(keeper.store.names().unwrap(), [""; 0]);
}

#[tokio::test]
async fn what_is_begun_behind_a_sweep_is_no_leftover_of_it() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let part = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    let names = [30, 40].map(checkpoint::round_name);
    names.iter().for_each(|name| keeper.store.put_bytes(name, &part, b"whole").unwrap());
    let before = |round| Task::Clear(Clearing::Before { round, writing: vec![round], restore: None });
    let sweep = keeper.begin(before(50));
    drop(keeper.begin(before(40)));
    sweep.await;
    assert_eq!(keeper.store.names().unwrap(), names[1..]);
    assert_eq!(keeper.begin(write(50)).await, Some(Done::Written(50, Ok(checkpoint::round_name(50)))));
    assert!(keeper.store.names().unwrap().contains(&names[1]));
}

#[test]
fn what_cannot_be_read_is_not_passed_over() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), 0);
    let directory = place.path().join(checkpoint::round_name(7));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("manifest.json"), "gone").unwrap();
    let (_, config) = open(&settings, false).unwrap();
    assert_eq!(config.unusable.map(|unusable| unusable.code), Some(ExitCode::BadData));
    let (_, config) = open(&settings, true).unwrap();
    assert_eq!((config.unusable, config.restore), (None, None), "members know what it was");

    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut settings = settings;
    settings.checkpoint.directory = file.display().to_string();
    for restore in ["latest", "none"] {
        settings.checkpoint.restore = restore.into();
        let (_, config) = open(&settings, false).unwrap();
        assert_eq!(config.unusable.map(|unusable| unusable.code), Some(ExitCode::Io), "{restore}");
        assert_eq!(open(&settings, true).unwrap().1.unusable, None);
    }
}
