//! Planted bugs, which the oracle must find. They are in the network or in the drivers; the code under test has no hooks.

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum PlantedBug {
    /// Aborted buffers are not restored.
    SkipRestore,
    /// The master commits before the last vote.
    CommitWithoutLastVote,
    /// A vote counts for its neighbour too.
    CountVoteTwice,
    /// The operations in a resume are lost.
    LoseResume,
    /// A frame of an epoch that is not open yet is dropped.
    DropNewerFrame,
    /// A frame of an earlier operation is accepted for the current one.
    AcceptStaleFrame,
    /// The slots of an aborted operation are lent again before its writer has stopped.
    ReuseUnfencedSlot,
    /// A restarted master reuses the epoch numbers of its earlier incarnation.
    ReuseEpochNumber,
    /// Slots that were lent to one operation are used for another.
    ShareCreditPool,
    /// Successful collectives do not update world sizes.
    StaleWorld,
    /// A heartbeat counts as a call of its sender.
    HeartbeatIsCall,
    /// The master evicts a peer as soon as its connection ends.
    EvictOnReset,
    /// The state of a peer that comes back from a checkpoint is taken for an older one.
    ForgetCheckpoint,
    /// A replica is taken for whole as soon as one rank has joined.
    AdmitHalfReplica,
    /// A restarted master does not learn which replica a peer is a rank of.
    ForgetReplica,
    /// A resumed operation takes other memory for the contributions that have arrived.
    ForgetKeptChunks,
    /// The digests of results are lost on their way to the master.
    LoseDigests,
    /// The checksums of payloads are not compared.
    SkipChecksums,
    /// A master that leads takes it that all others support it.
    DecideAlone,
    /// A standby that has not heard the active master for a moment takes over, as if all masters supported it.
    TakeOverTooEarly,
}
