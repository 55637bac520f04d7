//! The keeper over a real directory: in which order things are done there, and what it does not begin with.

use super::*;
use proto_common::error::ExitCode;
use std::path::Path;

fn settings(place: &Path, keep: u32) -> Settings {
    let mut settings = Settings::default();
    settings.checkpoint.directory = place.display().to_string();
    settings.checkpoint.keep = keep;
    settings.checkpoint.restore = "latest".into();
    settings
}

/// A round's checkpoint, as others name it.
fn name(round: u64) -> String {
    checkpoint::name_of_job(0, &checkpoint::round_name(round))
}

/// The checkpoints that are there.
fn names(keeper: &Keeper) -> Vec<String> {
    keeper.store.names().unwrap().into_iter().filter(|name| checkpoint::is_name(name)).collect()
}

fn completed(round: u64) -> Completed {
    let (tensors, tables, parts, restore) = Default::default();
    Completed { round, tensors, tables, parts, restore }
}

fn write(round: u64) -> Task {
    Task::Write(Box::new(completed(round)))
}

#[tokio::test]
async fn tasks_are_done_in_the_order_in_which_they_were_begun() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let (first, second) = (keeper.begin(write(1)), keeper.begin(write(2)));
    let written = |round: u64| Some(Done::Written(round, Ok(name(round))));
    // The second one runs first, and waits.
    let second = tokio::spawn(second);
    tokio::task::yield_now().await;
    assert_eq!(first.await, written(1));
    assert_eq!(second.await.unwrap(), written(2));
    assert_eq!(names(&keeper), [checkpoint::round_name(2)]);
}

#[tokio::test]
async fn a_manifest_does_not_wait_for_what_is_cleared_away() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 0), false).unwrap();
    let keeper = keeper.unwrap();
    let clearing = keeper.begin(Task::Clear(Clearing::Before { round: 1, writing: vec![1], restore: None }));
    let written = tokio::time::timeout(std::time::Duration::from_secs(20), keeper.begin(write(1))).await;
    assert_eq!(written, Ok(Some(Done::Written(1, Ok(name(1))))));
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
    assert_eq!(written.await, Some(Done::Written(1, Ok(self::name(1)))));
    given_up.await.unwrap();
    assert!(keeper.store.files(&name).unwrap().iter().any(|(there, _)| *there == file));
}

#[tokio::test]
async fn who_was_given_up_makes_room_and_what_is_being_written_stays() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let part = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    let all = [1, 2, 3].map(checkpoint::round_name);
    all.iter().for_each(|name| keeper.store.put_bytes(name, &part, b"whole").unwrap());
    let files = vec![part];
    let restore = None;
    keeper.begin(Task::Clear(Clearing::GivenUp { round: 3, files, restore: restore.clone() })).await;
    assert_eq!(names(&keeper), all[..2]);
    keeper.begin(Task::Clear(Clearing::Before { round: 3, writing: vec![2, 3], restore })).await;
    assert_eq!(names(&keeper), all[1..2]);
}

#[tokio::test]
async fn what_of_one_that_was_given_up_cannot_be_removed_is_told_and_so_is_what_can() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let file = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    // Of the reasons for which a file stays, one that holds for root, too.
    let stays = place.path().join(name(1)).join(&file);
    std::fs::create_dir_all(&stays).unwrap();
    let clearing = Clearing::GivenUp { round: 1, files: vec![file], restore: None };
    let told = keeper.begin(Task::Clear(clearing.clone())).await;
    let Some(Done::Cleared(of, Err(error))) = told else { panic!("{told:?}") };
    assert_eq!(of, clearing);
    assert!(error.contains(&stays.display().to_string()), "{error}");
    std::fs::remove_dir(&stays).unwrap();
    let told = keeper.begin(Task::Clear(clearing.clone())).await;
    assert_eq!(told, Some(Done::Cleared(clearing, Ok(()))));
    assert_eq!(names(&keeper), [""; 0]);
}

#[tokio::test]
async fn what_is_begun_behind_a_sweep_is_no_leftover_of_it() {
    let place = tempfile::tempdir().unwrap();
    let (keeper, _) = open(&settings(place.path(), 1), false).unwrap();
    let keeper = keeper.unwrap();
    let part = "part-s0000-l00-0000000000000001-0001.safetensors".to_owned();
    let all = [30, 40].map(checkpoint::round_name);
    all.iter().for_each(|name| keeper.store.put_bytes(name, &part, b"whole").unwrap());
    let before = |round| Task::Clear(Clearing::Before { round, writing: vec![round], restore: None });
    let sweep = keeper.begin(before(50));
    drop(keeper.begin(before(40)));
    sweep.await;
    assert_eq!(names(&keeper), all[1..]);
    assert_eq!(keeper.begin(write(50)).await, Some(Done::Written(50, Ok(name(50)))));
    assert!(names(&keeper).contains(&all[1]));
}

/// A keeper that says it runs on another machine: nobody here can look whether it does.
fn elsewhere(settings: &Settings) -> Keeper {
    let mut keeper = open(settings, false).unwrap().0.unwrap();
    (keeper.own.machine, keeper.own.host) = ("elsewhere".into(), "n1".into());
    keeper
}

fn refusal(claimed: Result<Claim, CheckpointError>) -> String {
    let error = claimed.unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Refused, "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_second_scheduler_of_a_job_is_refused_until_the_first_one_has_ended() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), 0);
    let [first, second] = [(); 2].map(|()| open(&settings, false).unwrap().0.unwrap());
    assert_eq!(first.begin(write(1)).await, Some(Done::Written(1, Ok(name(1)))));
    let text = refusal(second.claim());
    let pid = format!("process {} on host", std::process::id());
    for words in [pid.as_str(), "owner since 2", "another number (job)", "checkpoint.directory", "job-0"] {
        assert!(text.contains(words), "{text}");
    }
    let Some(Done::Written(2, Err(error))) = second.begin(write(2)).await else { panic!("written by both") };
    assert!(error.contains(&pid), "{error}");
    // Another job is none of its business.
    let mut other = settings.clone();
    other.job.0 = 7;
    let third = open(&other, false).unwrap().0.unwrap();
    let written = checkpoint::name_of_job(7, &checkpoint::round_name(2));
    assert_eq!(third.begin(write(2)).await, Some(Done::Written(2, Ok(written))));
    first.end();
    assert_eq!(second.begin(write(2)).await, Some(Done::Written(2, Ok(name(2)))));
    assert_eq!(names(&second), [1, 2].map(checkpoint::round_name));
}

#[tokio::test]
async fn a_scheduler_that_takes_a_job_over_ends_the_one_before() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), 1);
    let [first, second] = [false, true].map(|resume| open(&settings, resume).unwrap().0.unwrap());
    assert_eq!(first.claim().unwrap(), Claim::Owned);
    assert_eq!(first.begin(Task::Beat).await, None);
    // Until members have elected it, nothing of its own is written: the first one may be the one that they obey.
    assert_eq!(second.begin(Task::Beat).await, None);
    assert_eq!(first.begin(write(4)).await, Some(Done::Written(4, Ok(name(4)))));
    assert_eq!(second.begin(write(5)).await, Some(Done::Written(5, Ok(name(5)))));
    // Nothing of the second one's is removed, and nothing is written beside it.
    let clearing = Clearing::Before { round: 9, writing: vec![9], restore: None };
    for task in [write(9), Task::Clear(clearing), Task::Beat] {
        let Some(Done::Deposed(text)) = first.begin(task).await else { panic!("goes on") };
        assert!(text.contains("has taken over the checkpoints") && text.contains("process "), "{text}");
    }
    assert_eq!(names(&second), [checkpoint::round_name(5)]);
}

#[test]
fn a_scheduler_of_another_machine_is_replaced_if_it_shows_nothing_more() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), 0);
    let (first, mut second) = (elsewhere(&settings), open(&settings, false).unwrap().0.unwrap());
    assert_eq!(first.claim().unwrap(), Claim::Owned);
    let unclear = || match second.claim().unwrap() {
        Claim::Unclear(term) => term.to_string(),
        Claim::Owned => panic!("taken at once"),
    };
    assert!(unclear().contains("on host \"n1\""));
    assert!(unclear().contains("on host \"n1\""), "it has not been silent for long");
    second.silence = Duration::ZERO;
    assert_eq!(first.beat(), None);
    assert_eq!(second.claim().map(|claim| claim == Claim::Owned).ok(), Some(false), "its record has changed");
    assert_eq!(second.claim().unwrap(), Claim::Owned);
    assert!(matches!(first.beat(), Some(Done::Deposed(_))));
}

/// The disk was full when the scheduler started: it becomes the owner later, as it would have then.
#[tokio::test]
async fn a_scheduler_that_could_not_become_the_owner_at_its_start_does_when_the_owner_is_silent() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), 0);
    let (first, mut second) = (elsewhere(&settings), open(&settings, false).unwrap().0.unwrap());
    assert_eq!(first.claim().unwrap(), Claim::Owned);
    let Some(Done::Written(1, Err(error))) = second.begin(write(1)).await else { panic!("written by both") };
    assert!(error.contains("on host \"n1\""), "{error}");
    second.silence = Duration::ZERO;
    assert_eq!(second.begin(write(2)).await, Some(Done::Written(2, Ok(name(2)))));
}

#[test]
fn a_job_without_its_own_continues_from_what_lies_in_no_jobs_directory() {
    let place = tempfile::tempdir().unwrap();
    let mut settings = settings(place.path(), 0);
    let store = checkpoint::open(&settings.checkpoint.directory).unwrap();
    let old = |round| {
        let shape = Shape { chunk_bytes: settings.cluster.chunk_bytes, ..Shape::default() };
        checkpoint::commit(&*store, &Manifest::new(&checkpoint::round_name(round), 0, round, round, shape))
            .unwrap();
    };
    old(3);
    old(4);
    let restore = |settings: &Settings| open(settings, false).unwrap().1.restore;
    assert_eq!(restore(&settings), Some(checkpoint::round_name(4)));
    let keeper = open(&settings, false).unwrap().0.unwrap();
    keeper.write(&Completed { restore: Some(checkpoint::round_name(4)), ..completed(4) }).unwrap();
    assert_eq!(names(&keeper), [checkpoint::round_name(4)], "another directory: nothing is in its way");
    assert_eq!(restore(&settings), Some(name(4)));
    for (wanted, found) in [
        (checkpoint::round_name(3), checkpoint::round_name(3)),
        (checkpoint::round_name(4), name(4)),
        (name(4), name(4)),
    ] {
        settings.checkpoint.restore = wanted;
        assert_eq!(restore(&settings), Some(found));
    }
    // As a training that is launched again, with another number: the one that was written last, whichever job's it is.
    (settings.job.0, settings.checkpoint.restore) = (7, "latest".into());
    assert_eq!(restore(&settings), Some(name(4)));
    settings.checkpoint.restore = name(4);
    assert_eq!(restore(&settings), Some(name(4)), "of another job, by its name");
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
