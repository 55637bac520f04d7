//! Rules that tests break on purpose, to show that the fault laboratory notices. Only the feature `sabotage` can break one, and
//! no program is built with it; without it every rule holds, at no cost. It must not decide anything by itself.

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRule {
    /// A contribution that came before is folded again.
    Dedupe,
    /// A worker's channel is given up, and its slots given to others, without its end: what was under way still lands.
    Fencing,
    /// What a worker was granted over a channel that has ended is granted again before the fence is done.
    Fence,
    /// A round is published when its update was sent to the copies, not when they have confirmed it.
    AckAfterReplicate,
    /// Contributions are taken in any role, and of workers that have not heard of the last decision.
    EpochCheck,
    /// A slot that was used is not free again.
    CreditReturn,
}
