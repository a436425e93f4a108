/*
 * pccl.h: collectives for peers that come and go. The C face of Ringfold, for C99 and C++17 or later.
 *
 * A *master* orchestrates, *peers* do the work. A peer creates a communicator, connects it, and then, in a
 * loop, admits newcomers (pcclUpdateTopology), agrees on the model's state (pcclSynchronizeSharedState) and
 * reduces gradients (pcclAllReduce). Each of these is a vote: it ends when all who must call it have called it.
 *
 *   call                                                          who must call it together
 *   pcclUpdateTopology, pcclArePeersPending, pcclOptimizeTopology every accepted peer of the run
 *   pcclSynchronizeSharedState, pcclAllReduce (per tag)           every accepted peer of the peer group
 *   all others                                                    nobody; they concern the caller alone
 *
 * Every wait has a deadline. A peer that dies is noticed by its socket, a silent one by its heartbeats, and
 * peers that vote for different things get an error that names who waits for what.
 *
 * Threads: every function may be called from any thread. A collective may run on one thread while another
 * calls pcclArePeersPending. Destroying a communicator ends the calls that other threads are in.
 *
 * Buffers: memory that is given to a call belongs to the library until the call returns, and memory that is
 * given to pcclAllReduceAsync until pcclAwaitAsyncReduce or pcclDestroyCommunicator returns. Meanwhile a
 * receive buffer may not be touched, and a send buffer may not be written.
 *
 * Handles: a null pointer, a handle that was destroyed, or a pointer that never was a handle gives
 * pcclInvalidArgument, never undefined behaviour.
 *
 * Results: each function documents the results that have a meaning of their own for it. Besides those:
 *   pcclNotInitialized      a communicator function was called before pcclInit
 *   pcclInvalidArgument     a null pointer where none may be, an enum value that does not exist
 *   pcclInvalidUsage        the call can't be made now (not connected, or during another vote of this peer)
 *   pcclMasterConnectionFailed  this peer is no longer part of the run: the master is lost for good, or has put
 *                           the peer out, or the communicator was destroyed meanwhile
 *   pcclInternalError       the operating system refused something, or a bug of ours
 * pcclGetLastError tells more, in words.
 *
 * Environment:
 *   PCCL_LOG_LEVEL        TRACE, DEBUG, INFO, WARN, ERR or ERROR, FATAL, NONE or OFF; the default is WARN. Log
 *                         lines go to stderr. Nothing is logged as fatal, so FATAL is as quiet as OFF.
 *   PCCL_JOIN_TOKEN       (Ringfold) the join token of the run. Read by pcclCreateMaster, which then lets in only
 *                         peers that know it, and by pcclCreateCommunicator. Empty is the same as unset.
 *   PCCL_JOIN_TOKEN_FILE  (Ringfold) a file that holds the token; white space at its ends does not count.
 *                         PCCL_JOIN_TOKEN is preferred if both are set.
 */
#ifndef PCCL_H
#define PCCL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccoip_inet.h"

/* Marks the functions that the library exports. */
#if defined(__GNUC__) || defined(__clang__)
#define PCCL_EXPORT __attribute__((visibility("default")))
#else
#define PCCL_EXPORT
#endif

/* Marks pointers that may be null; for readers only. */
#define PCCL_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------ */
/* Results, types and options. The values are part of the binary interface.                                */
/* ------------------------------------------------------------------------------------------------------ */

/* How a call ended. */
typedef enum pcclResult_t {
    pcclSuccess = 0,
    /* pcclInit was not called. */
    pcclNotInitialized = 1,
    /* The operating system refused something, or a bug of ours. */
    pcclInternalError = 2,
    /* An argument can't be used. */
    pcclInvalidArgument = 3,
    /* The call can't be made now. */
    pcclInvalidUsage = 4,
    /* A collective needs at least two peers in the group. Let others in with pcclUpdateTopology. */
    pcclTooFewPeers = 5,
    /* The master can't be reached, or this peer is not part of the run. Only pcclConnect may be retried. */
    pcclMasterConnectionFailed = 6,
    /* A peer could not be reached. Kept for the numbering; no call returns it at present. */
    pcclRankConnectionFailed = 7,
    /* The collective was aborted for all of the group. Retry it. */
    pcclRankConnectionLost = 8,
    /* Nobody has the shared state that all wait for. */
    pcclNoSharedStateAvailable = 9,
    /* Asynchronous operations must be awaited first. */
    pcclPendingAsyncOps = 10,
    /* Retry pcclUpdateTopology. */
    pcclUpdateTopologyFailed = 11,
    /* Retry pcclOptimizeTopology. */
    pcclTopologyOptimizationFailed = 12,
    /* This peer's shared state was rejected, or the vote on it failed. */
    pcclSharedStateSyncFailed = 13,
    /* Another peer failed. For programs that name it; no call returns it at present. */
    pcclRemoteError = 14,

    /* Other names for the same. */
    pcclOptimizeTopologyFailed = pcclTopologyOptimizationFailed,
    pcclSystemError = pcclInternalError
} pcclResult_t;

/* The type of a tensor's elements. */
typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11
} pcclDataType_t;

/* Where a tensor lies. CUDA needs a driver and a device (pcclGetBuildInfo). */
typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    pcclDeviceCuda = 1
} pcclDeviceType_t;

/* How elements of different peers become one. Integers wrap. The average is the sum divided by the number of
 * peers, in the element type; integers truncate toward zero. Max and Min give NaN if any element is NaN. */
typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4
} pcclRedOp_t;

/* World sizes. They count accepted peers only. After a collective that succeeded they are the world of that
 * operation, the same on all peers. */
typedef enum pcclAttribute_t {
    /* Peers of the run. */
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,
    /* Peers of this communicator's peer group. */
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,
    /* Peer groups that have a peer. */
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,
    /* Peers of the largest peer group. */
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4,
    PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE = PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE
} pcclAttribute_t;

/* How a peer takes part in a synchronisation. */
typedef enum pcclSharedStateSyncStrategy_t {
    /* The content that most peers have wins; whoever has another takes it. Can't be mixed with the others. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0,
    /* Takes what others have, never sends. If all peers of the group do so, all get an error. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,
    /* Its content must win, or the call fails. When everyone who held the state is gone, such a peer sets the
     * group to its own revision: that is how a run goes on from an older checkpoint. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2
} pcclSharedStateSyncStrategy_t;

/* What the values to be quantised look like. Unused at present: quantisation measures the range of the values. */
typedef enum pcclDistributionHint_t {
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2,
    PCCL_DISTRIBUTION_HINT_NONE = pcclDistributionNone,
    PCCL_DISTRIBUTION_HINT_NORMAL = pcclDistributionNormal,
    PCCL_DISTRIBUTION_HINT_UNIFORM = pcclDistributionUniform
} pcclDistributionHint_t;

/* How values become integers on the wire. The source is Float16, BFloat16, Float or Double, the operation Sum,
 * Avg, Min or Max; all other combinations are pcclInvalidArgument. */
typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    /* To Uint8, Uint16 or Uint32. */
    pcclQuantMinMax = 1,
    /* To Int8, Uint8, Int16, Uint16, Int32 or Uint32. */
    pcclQuantZeroPointScale = 2
} pcclQuantizationAlgorithm_t;

/* A peer's connection to a run, and its part in it. */
typedef struct pcclComm_t pcclComm_t;

/* A master. */
typedef struct pcclMasterInstance_t pcclMasterInstance_t;

/* What is known of a peer. For programs that name it; no function takes or returns one at present. */
typedef struct pcclRankInfo_t pcclRankInfo_t;

/* What pcclCreateCommunicator needs to know. */
typedef struct pcclCommCreateParams {
    /* Where the master listens. */
    ccoip_socket_address_t master_address;
    /* Peers reduce and synchronise with those that name the same group. */
    uint32_t peer_group;
    /* Connections with each neighbour; 0 means the default. */
    uint32_t p2p_connection_pool_size;
} pcclCommCreateParams_t;

/* What the elements of a reduction are. */
typedef struct pcclReduceOperandDescriptor {
    pcclDataType_t datatype;
    /* Must be one of the hints, and changes nothing at present. */
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

/* How they travel. All zero means: as they are. With pcclQuantNone the type is ignored. */
typedef struct pcclQuantizationOptions {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

/* One all-reduce. All peers of the group must give the same under one tag. */
typedef struct pcclReduceDescriptor {
    /* Elements, not bytes. 0 is legal and does nothing, once all peers agree that it does. */
    size_t count;
    pcclRedOp_t op;
    /* Tells reductions apart that are in flight at the same time. */
    uint64_t tag;
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

/* One all-reduce of several, with its buffers. */
typedef struct pcclReduceOpDescriptor {
    void *sendbuf;
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

/* An all-reduce in flight. A plain value: copies name the same operation. */
typedef struct pcclAsyncReduceOp {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

/* What an all-reduce reports. */
typedef struct pcclReduceInfo {
    /* Peers that took part. */
    uint32_t local_world_size;
    /* Payload bytes that this peer sent and received. */
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclReduceInfo_t;

/* One tensor of a shared state. */
typedef struct pcclTensorInfo {
    /* The key: UTF-8, at most 256 bytes, each only once in a state. */
    const char *name;
    void *data;
    /* Elements, not bytes. */
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    /* Peers may hold different contents. A newcomer still receives it at its first synchronisation. */
    bool allow_content_inequality;
} pcclTensorInfo_t;

/* What all peers of a group shall hold alike. */
typedef struct pcclSharedState {
    /* Must grow by exactly one from one successful synchronisation to the next. */
    uint64_t revision;
    /* Entries of `infos`. */
    size_t count;
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

/* What a synchronisation reports: bytes of tensors that this peer sent and received. */
typedef struct pcclSharedStateSyncInfo {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

/* A peer's id. */
typedef struct pcclRankUuid {
    uint8_t data[16];
} pcclRankUuid_t;

/* What the library can do here: CUDA if there are a driver and a device. */
typedef struct pcclBuildInfo {
    bool has_cuda_support;
} pcclBuildInfo_t;

/* ------------------------------------------------------------------------------------------------------ */
/* The library.                                                                                            */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Makes the library ready. Call it before any communicator function, as often as you like.
 */
PCCL_EXPORT pcclResult_t pcclInit(void);

/*
 * Tells what this build of the library can do. Needs no pcclInit.
 */
PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *build_info_out);

/*
 * (Ringfold) What a result means, as a sentence. Never null; valid for ever.
 */
PCCL_EXPORT const char *pcclGetErrorString(pcclResult_t result);

/*
 * (Ringfold) Why the last call of this thread that failed did so: names the argument, the peer or the address
 * that is to blame. Never null, empty if no call failed. Valid until the next call of this thread that fails.
 */
PCCL_EXPORT const char *pcclGetLastError(void);

/* ------------------------------------------------------------------------------------------------------ */
/* Communicators.                                                                                          */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Makes a communicator. It does not speak with the master before pcclConnect.
 *
 *   pcclInvalidArgument   null, an address that can't be a master's (port 0, no such protocol), or a join
 *                         token file that can't be read
 */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/*
 * Leaves the run and frees the communicator. Operations in flight fail, calls in other threads return, and
 * nothing of the library touches a buffer any more when it returns. Fine if never connected. Never blocks
 * for ever.
 */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/*
 * Registers with the master and blocks until this peer is accepted. The first peer of a run is accepted at
 * once, others when all accepted peers call pcclUpdateTopology; those who wait are admitted together.
 *
 *   pcclMasterConnectionFailed  no master is there, or it turned this peer away (wrong token). May be retried.
 *   pcclInvalidUsage            connected before
 */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

/*
 * Admits whoever waits to join. Called together by every accepted peer of the run.
 *
 *   pcclPendingAsyncOps         an asynchronous all-reduce has not been awaited
 *   pcclUpdateTopologyFailed    the vote failed, or peers could not reach each other; retry
 *   pcclMasterConnectionFailed  the master is gone, or this peer was removed; a retry can't help
 *   pcclInvalidUsage            not connected
 */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/*
 * Tells whether anyone waits to join. Called together by every accepted peer of the run, all of whom get the
 * same answer. May be called while collectives run.
 *
 *   pcclRankConnectionLost      the vote failed; retry
 *   pcclInvalidUsage            not connected
 */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *peers_pending_out);

/* Another name of pcclArePeersPending. */
PCCL_EXPORT pcclResult_t pcclAreNewPeersPending(const pcclComm_t *communicator, bool *peers_pending_out);

/*
 * Measures the bandwidth between peers that have not been measured yet, and takes the ring whose slowest link
 * is fastest. Admits nobody. Called together by every accepted peer of the run.
 *
 *   pcclTopologyOptimizationFailed  the vote failed, or peers could not reach each other; retry
 *   pcclPendingAsyncOps             an asynchronous all-reduce has not been awaited
 *   pcclInvalidUsage                not connected, or there is no other peer
 */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/*
 * Tells a world size. Asks nobody: the value changes by pcclConnect, pcclUpdateTopology, pcclOptimizeTopology
 * and collectives that fail, and is 0 before pcclConnect.
 *
 *   pcclMasterConnectionFailed  an earlier call found that this peer is no longer part of the run
 */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                                          int *p_attribute_out);

/* ------------------------------------------------------------------------------------------------------ */
/* All-reduce.                                                                                             */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Reduces the buffers of all peers of the group, element by element; every peer gets the same bits. Called
 * together, under one tag, by every accepted peer of the group. Blocks.
 *
 * In place if sendbuf and recvbuf are equal; otherwise they may not overlap. The outcome is the same for all:
 * success, or an abort with the same code. On failure an in-place buffer holds what it held before, so that a retry
 * counts nothing twice; out of place, sendbuf is never written and recvbuf is undefined after a failure.
 * `reduce_info_out` may be null, and is written on success only. The buffers may be null if count is 0.
 *
 * Both may be in the memory of a CUDA device. What was queued on its default stream before is waited for, and
 * the result is in place on return; after a failure the device holds what it held.
 *
 *   pcclRankConnectionLost      aborted for the whole group: a peer was lost, or peers did not call in time;
 *                               pcclGetLastError says which. Retry
 *   pcclTooFewPeers             there is no other peer in the group
 *   pcclInvalidUsage            not connected
 *   pcclInvalidArgument         null, no such enum value, tag in flight, overlap, a count beyond the address
 *                               space, a quantisation that does not exist for this type and operation; or aborted
 *                               for the whole group because peers asked for different things under this tag.
 *                               A retry fails again
 *   pcclInternalError           aborted for the whole group because a peer can't run it
 */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator,
                                       pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * The same without blocking. Many may be in flight, each with a tag of its own; different peers may launch
 * them in different orders. Invalid arguments of this peer are reported here, an abort by
 * pcclAwaitAsyncReduce. The tag is in flight until that has returned.
 */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf,
                                            const pcclReduceDescriptor_t *descriptor,
                                            const pcclComm_t *communicator, pcclAsyncReduceOp_t *reduce_handle_out);

/*
 * Blocks until the operation has ended, and tells how: see pcclAllReduce. `reduce_info_out` may be null.
 *
 *   pcclInvalidArgument         null, awaited before, never launched, or its communicator was destroyed
 */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * Runs several all-reduces, at most `max_in_flight` at a time, and runs those that were aborted again, until
 * all have succeeded. `max_in_flight` may differ between peers. Blocks. The report is the sum over all
 * operations, with the world that the last of them ran in; it may be null.
 *
 *   pcclTooFewPeers             this peer is alone; some of the operations may have succeeded before
 *   pcclInvalidArgument         null, count 0, max_in_flight below 1, a tag that occurs twice, a receive
 *                               buffer that overlaps another operation's buffer, and what pcclAllReduce says
 */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

/* ------------------------------------------------------------------------------------------------------ */
/* Shared state.                                                                                           */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Makes the state of all peers of the group equal. Called together by every accepted peer of the group. Blocks.
 *
 * The contents are hashed; peers whose content was not elected receive the tensors in which they differ,
 * in place, and `revision` is set to the elected one. While nobody has synchronised, the first caller's revision
 * is taken; afterwards the next one is the last one plus one. A peer with a revision beyond that is rejected. A peer
 * with an older revision is not rejected, unlike in PCCL's documents: it receives the elected content and revision.
 * Two tensors may be one and the same memory; parts of it may not overlap.
 * On failure `revision` and `sync_info_out` are not written. `sync_info_out` may be null.
 *
 * With three arguments the strategy is ENFORCE_POPULAR:
 *   pcclSynchronizeSharedState(communicator, &state, &info)
 *   pcclSynchronizeSharedState(communicator, &state, strategy, &info)
 * The exported symbol takes four. `&pcclSynchronizeSharedState` is its address; in C++, where there are two
 * overloads, it needs a type to be assigned to.
 *
 *   pcclNoSharedStateAvailable  nobody offers the revision that comes next, or all who held the elected content
 *                               went away before it was received
 *   pcclSharedStateSyncFailed   this peer's state was rejected (a revision that is beyond the next one, keys,
 *                               types or counts that differ from the elected ones, a strategy that can't be
 *                               mixed with the others'), or the vote failed; pcclGetLastError says which
 *   pcclPendingAsyncOps         an asynchronous all-reduce has not been awaited
 *   pcclInvalidUsage            not connected
 *   pcclInvalidArgument         null, a key that is null, occurs twice or is no UTF-8, null data with a count,
 *                               tensors that overlap, a CUDA tensor without CUDA support, or whose
 *                               data is not in the memory of a CUDA device
 */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out);

/* ------------------------------------------------------------------------------------------------------ */
/* Masters.                                                                                                */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Makes a master, and binds it to this address, so that pcclGetMasterAddress tells its port. Peers that connect before
 * pcclRunMaster wait for it. If the address is not available yet, the master is made all the same, and pcclRunMaster
 * tries again. Needs no pcclInit.
 *
 *   pcclInvalidArgument         null, no such protocol, or a join token file that can't be read
 */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t **p_master_handle_out);

/*
 * Starts to serve, on a thread of the library, and binds the address if pcclCreateMaster could not. Returns at once.
 *
 *   pcclInvalidUsage            the address can't be listened on: it is in use, or not of this machine
 *   pcclInvalidArgument         run before
 */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance);

/*
 * (Ringfold) Tells where a master listens; useful if it was made for port 0, which means any free port.
 *
 *   pcclInvalidUsage            not bound: the address was not available, and the master was not run
 */
PCCL_EXPORT pcclResult_t pcclGetMasterAddress(const pcclMasterInstance_t *master_instance,
                                              ccoip_socket_address_t *address_out);

/*
 * Tells the master to stop, and does not wait for it. May be called again, and from any thread.
 */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance);

/*
 * Blocks until the master has stopped: for as long as it takes somebody to interrupt it.
 *
 *   pcclInvalidUsage            never run
 */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance);

/*
 * Frees the master. One that still runs is interrupted and waited for first. The port can be bound again when it
 * returns.
 */
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master_instance);

#ifdef __cplusplus
} /* extern "C" */

inline pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                               pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out) {
    return pcclSynchronizeSharedState(communicator, shared_state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR,
                                      sync_info_out);
}
#else
static inline pcclResult_t pcclSynchronizePopularState_(const pcclComm_t *communicator,
                                                        pcclSharedState_t *shared_state,
                                                        pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out) {
    return pcclSynchronizeSharedState(communicator, shared_state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR,
                                      sync_info_out);
}

/* The name that follows four arguments is the function, the one that follows three is the short form. */
#define PCCL_FIFTH_(a, b, c, d, fifth, ...) fifth
#define pcclSynchronizeSharedState(...)                                                                      \
    PCCL_FIFTH_(__VA_ARGS__, pcclSynchronizeSharedState, pcclSynchronizePopularState_, unused)(__VA_ARGS__)
#endif

#endif /* PCCL_H */
