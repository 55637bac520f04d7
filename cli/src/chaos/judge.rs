//! Who may end as it did: what the ends of processes say of a run. It looks at codes and at what was logged, and does nothing.

use super::cluster::{Seat, hash_in, last_life};
use proto_common::error::ExitCode;
use proto_common::ids::Role;

/// Who has ended with 0 after this, by what worker 0 said in all its lives.
pub(super) fn judge_unmoved(unmoved: &[Seat], said: &str, fault: &str) -> Result<(), String> {
    if unmoved.is_empty() || hash_in(last_life(said)).is_some() {
        return Ok(());
    }
    let who: Vec<String> = unmoved.iter().map(ToString::to_string).collect();
    let who = who.join(", ");
    Err(format!("ended with code 0 although {fault} before the end of the training: {who}"))
}

/// Was the scheduler killed while it told members of the end (`is_away`)? It is not started again then, and a server that has not
/// heard it looks for one as long as its setting says.
pub(super) fn is_stranded(is_away: bool, seat: Seat, code: i32) -> bool {
    is_away && seat.role == Role::Server && code == ExitCode::SchedulerUnreachable as i32
}

/// The scheduler refuses a process with these words if all workers have said goodbye.
const IS_ENDING: &str = "the job is ending";

/// Was it started again so late that the job had ended in good order: a server that could not register any more, a scheduler to
/// which nobody came, or a worker that was killed when it had said goodbye and had not ended yet?
pub(super) fn is_late(seat: Seat, code: i32, said: &str, scheduler_said: &str) -> bool {
    let said = last_life(said);
    let is_unreachable = code == ExitCode::SchedulerUnreachable as i32;
    match seat.role {
        Role::Server => {
            (is_unreachable || is_refused_at_end(code, said)) && !said.contains("server registered")
        }
        Role::Scheduler => code == ExitCode::Deadline as i32 && !said.contains(" registered "),
        Role::Worker => {
            // Its place may be counted as one that is taken, while others train on.
            let is_refused = code == ExitCode::Refused as i32
                && [IS_ENDING, "are taken", "is taken"].iter().any(|words| said.contains(words));
            (is_unreachable || is_refused) && has_left(seat, scheduler_said)
        }
    }
}

/// Was it refused because the job is ending? The scheduler is there still, then.
pub(super) fn is_refused_at_end(code: i32, said: &str) -> bool {
    code == ExitCode::Refused as i32 && last_life(said).contains(IS_ENDING)
}

/// Is the last that the scheduler's lives said of it that it left?
fn has_left(seat: Seat, scheduler_said: &str) -> bool {
    let last = |what: &str| scheduler_said.rfind(&format!(" {seat} {what}"));
    last("has left the job") > last("registered ")
}

/// Is it one of the codes that `gradwire env` lists, and not that of a bug?
pub(super) fn is_typed(code: i32) -> bool {
    code != ExitCode::Internal as i32 && ExitCode::TABLE.iter().any(|(known, _)| *known as i32 == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::cluster::SCHEDULER;
    use proto_common::ids::{MemberId, Rank};

    #[test]
    fn who_did_not_hear_of_the_end_because_the_scheduler_was_killed_is_stranded() {
        let seat = |role| MemberId { role, rank: Rank(0) };
        let unreachable = ExitCode::SchedulerUnreachable as i32;
        assert!(is_stranded(true, seat(Role::Server), unreachable));
        assert!(!is_stranded(true, seat(Role::Server), ExitCode::Internal as i32));
        assert!(!is_stranded(true, SCHEDULER, unreachable));
        assert!(!is_stranded(false, seat(Role::Server), unreachable));
    }

    #[test]
    fn a_server_that_came_after_the_end_is_late_and_one_that_had_registered_is_not() {
        let server = MemberId { role: Role::Server, rank: Rank(1) };
        let unreachable = ExitCode::SchedulerUnreachable as i32;
        let life = "--- a life of server 1\n";
        let (before, registered) =
            (format!("{life}INFO server registered rank=1\n"), "INFO server registered\n");
        let late = format!("{before}{life}error: the scheduler cannot be reached\n");
        let judge = |code, said: &str| is_late(server, code, said, "");
        assert!(judge(unreachable, &late), "the life before had registered, this one has not");
        assert!(!judge(unreachable, &format!("{life}{registered}")));
        let refused =
            "error: the scheduler refused this process: the job is ending: restart this process later\n";
        assert!(judge(ExitCode::Refused as i32, &format!("{before}{life}{refused}")), "it is told so");
        assert!(!judge(ExitCode::Refused as i32, &format!("{before}{life}error: another version\n")));
        assert!(!judge(ExitCode::Internal as i32, &late));
    }

    #[test]
    fn a_worker_that_had_left_before_it_was_killed_is_late_and_one_that_had_not_is_not() {
        let worker = MemberId { role: Role::Worker, rank: Rank(2) };
        let said = "--- a life of worker 2\nINFO a line\n--- a life of worker 2\nerror: the job is ending; start it again\n";
        let judge = |code: ExitCode, scheduler: &str| is_late(worker, code as i32, said, scheduler);
        let (came, left) =
            (" words: worker 2 registered peer=\"a\"\n", " words: worker 2 has left the job\n");
        let gone = format!("{came}{left} words: worker 12 registered peer=\"b\"\n");
        assert!(judge(ExitCode::SchedulerUnreachable, &gone));
        assert!(judge(ExitCode::Refused, &gone));
        assert!(!judge(ExitCode::Internal, &gone));
        assert!(!is_late(worker, ExitCode::Refused as i32, "--- a life of worker 2\nerror: other\n", &gone));
        for scheduler in [String::new(), came.to_owned(), format!("{gone}{came}")] {
            assert!(!judge(ExitCode::SchedulerUnreachable, &scheduler), "{scheduler}");
        }
    }

    #[test]
    fn a_scheduler_to_which_nobody_came_is_late_and_one_that_lost_somebody_is_not() {
        let life = "--- a life of scheduler 0\n";
        let came = "INFO scheduler 0 words: worker 1 registered peer=\"127.0.0.1:5\"\n";
        let late = format!(
            "{life}{came}{life}INFO scheduler 0 the scheduler listens\nerror: the job is not complete\n"
        );
        let judge = |code: ExitCode, said: &str| is_late(SCHEDULER, code as i32, said, said);
        assert!(judge(ExitCode::Deadline, &late));
        assert!(!judge(ExitCode::Deadline, &format!("{life}{came}")));
        assert!(!judge(ExitCode::MemberDied, &late));
    }

    #[test]
    fn an_end_with_0_of_a_job_that_died_is_wrong_unless_training_was_over() {
        let seat = |role, rank| MemberId { role, rank: Rank(rank) };
        let unmoved = [seat(Role::Server, 1), seat(Role::Worker, 0)];
        let judge = |unmoved: &[Seat], said: &str| judge_unmoved(unmoved, said, "worker 1 was killed");
        let (life, end) = ("--- a life of worker 0\n", "test_accuracy=0.9 weights_sha256=ab transport=shm\n");
        assert!(judge(&unmoved, &format!("{life}epoch 1\n{life}{end}")).is_ok());
        assert!(judge(&[], life).is_ok());
        // A hash of the life before is none of this one.
        for said in [String::new(), format!("{life}epoch 1\n"), format!("{life}{end}{life}epoch 1\n")] {
            let Err(text) = judge(&unmoved, &said) else { panic!("right after {said:?}") };
            assert!(text.contains("server 1, worker 0") && text.contains("worker 1 was killed"), "{text}");
        }
    }
}
