#include <pccl.h>

/* The header leaves these names to its users, and brings assert. */
#if defined(PCCL_CHECK) || defined(LOG) || defined(panic)
#error "pccl.h defines a name that belongs to its users"
#endif
#ifndef assert
#error "pccl.h does not bring assert"
#endif

int main(void) {
    pcclResult_t (*synchronize)(const pcclComm_t *, pcclSharedState_t *, pcclSharedStateSyncStrategy_t,
                                pcclSharedStateSyncInfo_t *) = &pcclSynchronizeSharedState;
    pcclSharedState_t state = {0, 0, 0};
    assert(pcclInit() == pcclSuccess);
    if (synchronize(0, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, 0) != pcclInvalidArgument) return 1;
    if (pcclSynchronizeSharedState(0, &state, 0) != pcclInvalidArgument) return 2;
    if (pcclSynchronizeSharedState(0, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY, 0) !=
        pcclInvalidArgument) {
        return 3;
    }
    if ((pcclSynchronizeSharedState)(0, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, 0) !=
        pcclInvalidArgument) {
        return 4;
    }
    return 0;
}
