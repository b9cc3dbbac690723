//! (tests) Errors that the protocol exists to prevent: each planted alone, in a configuration where the protocol
//! holds without it, and caught by the invariant named with it.

use super::invariants::*;
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// `ledger.poll` hands a request out once.
    DestructivePoll,
    /// The same id again makes a new request.
    RepeatIsNew,
    /// `publish.commit` goes to the tenant's directory of now, whatever epoch its writer was told.
    NoEpochCheck,
    /// `ledger.ack` before `removal.marker`.
    AckBeforeMarker,
    /// `removal.marker` before `removal.delete`.
    MarkerBeforeDelete,
    /// `removal.open` before `ledger.ack`.
    OpenBeforeAck,
    /// `removal.trash` before `removal.hide`.
    TrashBeforeHide,
    /// No `removal.sync`.
    NoSync,
    /// No `removal.drain`.
    NoDrain,
    /// A failed `removal.delete` is passed over, and `removal.verify` does not look.
    NoVerify,
    /// What was staged is not removed, and not looked for.
    StagedStays,
    /// Only `.trash/<generation>` is deleted and verified, not what earlier generations left of the scope.
    OwnTrashAlone,
    /// A request of a tenant removes everything.
    GlobalInstead,
    /// A failed attempt leaves the counters at zero.
    CountersOnFailure,
    /// After a start, a pending scope that nobody counted is said to hold nothing.
    UncountedIsZero,
    /// A start takes over every epoch directory.
    Revives,
    /// A start takes a tenant's epoch from the names of its directories.
    EpochFromNames,
    /// A start scans and opens a pending scope.
    ScansPending,
    /// Each scope has its own sequence of generations.
    CountersPerScope,
    /// A global acknowledgement covers the tenants' later requests.
    AckTooFar,
    /// The mode of the highest request of a scope hides that an earlier one is physical.
    ModeOfTheFloor,
    /// A global logical request covers a pending physical one of a tenant.
    ModeOfOneScope,
    /// `removal.open` opens what a later removal has closed.
    OpensForAll,
    /// `removal.open` compares with the fence's epoch, which after a start may be a marker's that is not acknowledged.
    OpensByEpoch,
}

macro_rules! mistakes {
    ($($test:ident: $mistake:ident in $protocol:ident breaks $invariant:ident;)*) => {
        $(#[test]
        fn $test() {
            breaks($protocol(), Mistake::$mistake, $invariant);
        })*
    };
}

mistakes! {
    a_destructive_poll: DestructivePoll in tenant_and_global breaks NEVER_LOST;
    a_repeat_that_is_new: RepeatIsNew in two_crashes_and_lost_answers breaks ONE_REQUEST;
    no_epoch_check: NoEpochCheck in one_tenant breaks NOTHING_STALE;
    an_ack_before_the_marker: AckBeforeMarker in tenant_and_global breaks MARKER_FIRST;
    a_marker_before_the_deletion: MarkerBeforeDelete in tenant_and_global breaks EMPTY_FIRST;
    open_before_the_ack: OpenBeforeAck in tenant_and_global breaks READY_LAST;
    trash_before_hide: TrashBeforeHide in writers_and_failure breaks OUT_OF_SIGHT;
    no_sync: NoSync in tenant_and_global breaks LEFT_NOTHING;
    no_drain: NoDrain in writers_and_failure breaks NOTHING_STALE;
    no_verification: NoVerify in writers_and_failure breaks EMPTY_FIRST;
    staged_values_that_stay: StagedStays in one_tenant breaks LEFT_NOTHING;
    trash_of_one_generation_alone: OwnTrashAlone in logical_tenant_and_global breaks LEFT_NOTHING;
    a_global_removal_instead: GlobalInstead in one_tenant breaks NO_OTHER_VALUE;
    counters_zeroed_on_failure: CountersOnFailure in writers_and_failure breaks COUNTERS;
    uncounted_is_zero: UncountedIsZero in tenant_and_global breaks COUNTERS;
    a_revived_epoch: Revives in logical_tenant_and_global breaks NOTHING_STALE;
    an_epoch_from_names: EpochFromNames in tenant_and_global breaks NOTHING_STALE;
    a_scan_of_a_pending_scope: ScansPending in tenant_and_global breaks READY_LAST;
    a_sequence_per_scope: CountersPerScope in tenant_and_global breaks GLOBAL_DOMINATES;
    an_ack_that_goes_too_far: AckTooFar in tenant_and_global breaks GLOBAL_DOMINATES;
    a_logical_floor_over_a_physical: ModeOfTheFloor in tenant_both_ways breaks LOGICAL_APART;
    a_logical_global_over_a_physical_tenant: ModeOfOneScope in tenant_and_logical_global breaks LOGICAL_APART;
    open_for_all: OpensForAll in tenant_and_global breaks READY_LAST;
    open_by_the_epoch: OpensByEpoch in tenant_and_global breaks READY_LAST;
}
