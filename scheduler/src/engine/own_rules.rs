//! Update rules that the programs of servers have registered: all servers of a job have the same ones, and declarations that
//! name one are completed. It must not know what a rule computes, nor who the servers are.

use proto_common::ids::Role;
use proto_common::message::{DeclareError, RefusalReason, Register};
use proto_common::optimizer::OwnKind;
use proto_common::tensor::{RuleChange, TensorSpec};

/// Does a server have the rules that the others have (`ours`)? If it did not, a chunk that moves to it, or whose replica it becomes,
/// could not go on there.
pub(super) fn check(register: &Register, ours: Option<&[OwnKind]>) -> Result<(), RefusalReason> {
    if register.role != Role::Server {
        return Ok(());
    }
    let misplaced = |what: String| Err(RefusalReason::Misplaced(what));
    if let Err(error) = OwnKind::check_all(&register.rules) {
        return misplaced(format!("its program's update rules are not valid: {error}"));
    }
    match ours.and_then(|ours| OwnKind::difference(ours, &register.rules)) {
        Some(what) => misplaced(format!(
            "all servers of a job have the same update rules of their own, but {what}; run the same program for all servers"
        )),
        None => Ok(()),
    }
}

/// Completes declarations before they are sent to members: own rules get all their parameters.
pub(super) fn settle(ours: Option<&[OwnKind]>, tensors: &mut [TensorSpec]) -> Result<(), DeclareError> {
    for spec in tensors {
        let settled = spec.optimizer.settled(ours.unwrap_or_default());
        spec.optimizer = settled.map_err(|error| spec.unsupported(error.to_string()))?;
    }
    Ok(())
}

/// The same of a change.
pub(super) fn settle_change(
    ours: Option<&[OwnKind]>,
    change: RuleChange,
) -> Result<RuleChange, DeclareError> {
    let settled = change.optimizer.settled(ours.unwrap_or_default());
    let spec = || TensorSpec::f32(change.key.0, 1, change.optimizer);
    let optimizer = settled.map_err(|error| spec().unsupported(error.to_string()))?;
    Ok(RuleChange { optimizer, ..change })
}
