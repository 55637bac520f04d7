//! What a lane counts, for metrics. Whichever part of the engine sees an event counts it here; nothing is decided by a count.

proto_common::counts! {
    /// Counts for metrics. Plain numbers; the runtime publishes them.
    #[derive(serde::Serialize)]
    pub struct LaneStats {
        /// Batches taken.
        batches,
        /// Contributions reduced.
        contributions,
        /// Payload bytes of contributions.
        contribution_bytes,
        /// Rounds published, one a chunk.
        rounds,
        /// The highest round that a chunk has published.
        newest: max,
        /// Operations answered.
        answers,
        /// Duplicates recognised and not applied.
        duplicates,
        /// Contributions that came when their round was over, and were dropped.
        late,
        /// Contributions that came before their turn and were copied.
        spills,
        /// Contributions that other workers of the same hosts have added to theirs.
        merged,
        /// Contributions read out of workers' memory.
        fetches,
        /// Contributions taken in place in workers' memory.
        in_place,
        /// Views of weights given.
        views,
        /// Rounds that went on without workers that had not copied older weights.
        relieved,
        /// Contributions that workers wrote into key buffers.
        placed,
        /// Operations sent back to be tried again.
        retries,
        /// Operations refused.
        refusals,
        /// Contributions among them that are not what the tensor's codec makes.
        malformed,
        /// Operations whose deadline passed.
        deadlines,
        /// Rounds whose values did not fit their type, one a chunk.
        bad_rounds,
        /// Batches whose payload was not what its checksum says.
        corrupt_batches,
        /// Calls taken for handlers.
        calls,
        /// Whole states of chunks that were sent to copies, one a chunk.
        #[serde(skip)]
        states,
    }
}
