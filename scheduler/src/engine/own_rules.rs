//! Update rules that the programs of servers have registered: all servers of a job have the same ones, and declarations that
//! name one are completed. It must not know what a rule computes.

use super::Engine;
use proto_common::ids::Role;
use proto_common::message::{DeclareError, RefusalReason, Register};
use proto_common::optimizer::OwnKind;
use proto_common::tensor::{RuleChange, TensorSpec};

impl Engine {
    /// The rules of the servers that are there, or wait for a rank; `None` if there is no server.
    fn own_rules(&self) -> Option<&[OwnKind]> {
        let mut members = self.members.iter().filter(|(id, member)| id.role == Role::Server && !member.gone);
        let mut waiting = self.rebuild.waiting().filter(|register| register.role == Role::Server);
        let of_member = members.next().map(|(_, member)| &member.rules[..]);
        of_member.or_else(|| waiting.next().map(|register| &register.rules[..]))
    }

    /// Does a server have the rules that others have? If it did not, a chunk that moves to it, or whose replica it becomes,
    /// could not go on there.
    pub(super) fn has_the_rules(&self, register: &Register) -> Result<(), RefusalReason> {
        if register.role != Role::Server {
            return Ok(());
        }
        let misplaced = |what: String| Err(RefusalReason::Misplaced(what));
        if let Err(error) = OwnKind::check_all(&register.rules) {
            return misplaced(format!("its program's update rules are not valid: {error}"));
        }
        match self.own_rules().and_then(|ours| OwnKind::difference(ours, &register.rules)) {
            Some(what) => misplaced(format!(
                "all servers of a job have the same update rules of their own, but {what}; run the same program for all servers"
            )),
            None => Ok(()),
        }
    }

    /// Declarations as all members are told them: rules of the servers' program have all their parameters.
    pub(super) fn settle_rules(&self, tensors: &mut [TensorSpec]) -> Result<(), DeclareError> {
        let kinds = self.own_rules().unwrap_or_default();
        for spec in tensors {
            spec.optimizer =
                spec.optimizer.settled(kinds).map_err(|error| spec.unsupported(error.to_string()))?;
        }
        Ok(())
    }

    /// As [`Engine::settle_rules`], of a change.
    pub(super) fn settle_change(&self, change: RuleChange) -> Result<RuleChange, DeclareError> {
        let settled = change.optimizer.settled(self.own_rules().unwrap_or_default());
        let spec = || TensorSpec::f32(change.key.0, 1, change.optimizer);
        let optimizer = settled.map_err(|error| spec().unsupported(error.to_string()))?;
        Ok(RuleChange { optimizer, ..change })
    }
}
