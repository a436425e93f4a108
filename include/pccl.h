/*
 * pccl.h: fault-tolerant collectives. The C API of Ringfold, for C99 and C++17 or later.
 *
 * A *master* coordinates *peers*. A peer creates a communicator, connects it, and then, in a loop, accepts waiting
 * peers (pcclUpdateTopology), synchronises the model's state (pcclSynchronizeSharedState) and reduces gradients
 * (pcclAllReduce). Each of these calls returns when all peers that must make it have made it.
 *
 *   call                                                          must be called by
 *   pcclUpdateTopology, pcclArePeersPending, pcclOptimizeTopology every accepted peer of the run
 *   pcclSynchronizeSharedState, pcclAllReduce (per tag)           every accepted peer of the peer group
 *   all others                                                    only the caller
 *
 * Every wait has a timeout. A dead peer is detected by its socket, a silent one by its heartbeats. Peers that make
 * contradicting calls get an error that names the peers.
 *
 * Threads: every function may be called from any thread. A collective may run on one thread while another calls
 * pcclArePeersPending. Destroying a communicator ends the calls of other threads.
 *
 * Buffers: the library uses the buffers of a call until it returns, and those of pcclAllReduceAsync until
 * pcclAwaitAsyncReduce or pcclDestroyCommunicator returns. Until then do not read or write a receive buffer, and do
 * not write a send buffer.
 *
 * Handles: a null pointer, a destroyed handle or an invalid pointer gives pcclInvalidArgument, never undefined
 * behaviour.
 *
 * Results: each function documents its specific results. In addition:
 *   pcclNotInitialized      a communicator function was called before pcclInit
 *   pcclInvalidArgument     an invalid null pointer or enum value
 *   pcclInvalidUsage        the call is not possible now (not connected, or during another vote of this peer)
 *   pcclMasterConnectionFailed  this peer is no longer part of the run: the master is lost, has evicted the peer, or
 *                           the communicator was destroyed
 *   pcclInternalError       an error of the operating system, or a bug
 * pcclGetLastError describes the error.
 *
 * Environment:
 *   PCCL_LOG_LEVEL        TRACE, DEBUG, INFO, WARN, ERR or ERROR, FATAL, NONE or OFF; the default is WARN. The log
 *                         goes to stderr. FATAL is the same as OFF.
 *   PCCL_JOIN_TOKEN       (Ringfold) the join token of the run, for pcclCreateMaster, which then accepts only peers
 *                         with this token, and for pcclCreateCommunicator. Empty is the same as unset.
 *   PCCL_JOIN_TOKEN_FILE  (Ringfold) the file with the token; surrounding white space is ignored. PCCL_JOIN_TOKEN
 *                         takes precedence. Several lines are several tokens: the first is used, a master accepts
 *                         all. The file is read again when it changes.
 *   RINGFOLD_TLS_CA, RINGFOLD_TLS_CERT, RINGFOLD_TLS_KEY, RINGFOLD_TLS_REVOKED
 *                         (Ringfold) the files with certificates of the run; see pcclSetTls, which takes precedence.
 *   RINGFOLD_MASTERS      (Ringfold) all masters of the run, host:port each, separated by commas: pcclCreateCommunicator
 *                         uses them instead of its master_address, and a master of pcclCreateMaster is one of them.
 *                         When the active one is lost, another one takes over.
 *   RINGFOLD_MAX_UPLOAD, RINGFOLD_MAX_DOWNLOAD
 *                         (Ringfold) caps on the bandwidth of this process to and from other hosts, such as 50mbit or
 *                         10MiB/s; at least 1mbit. pcclCreateCommunicator fails if one is invalid.
 *   RINGFOLD_<NAME>       (Ringfold) any setting of docs/settings.md; RINGFOLD_CONFIG is the path of a TOML file with
 *                         settings. pcclSetOption takes precedence. RINGFOLD_LOG and RINGFOLD_JOIN_TOKEN are newer names
 *                         of the PCCL variables above, and take precedence.
 */
#ifndef PCCL_H
#define PCCL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccoip_inet.h"

/* Marks exported functions. */
#if defined(__GNUC__) || defined(__clang__)
#define PCCL_EXPORT __attribute__((visibility("default")))
#else
#define PCCL_EXPORT
#endif

/* Marks pointers that may be null. */
#define PCCL_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------ */
/* Results, types and options. The values are part of the binary interface.                                */
/* ------------------------------------------------------------------------------------------------------ */

/* The result of a call. */
typedef enum pcclResult_t {
    pcclSuccess = 0,
    /* pcclInit was not called. */
    pcclNotInitialized = 1,
    /* An error of the operating system, or a bug. */
    pcclInternalError = 2,
    /* An argument is invalid, or peers made different calls. */
    pcclInvalidArgument = 3,
    /* The call is not possible now. */
    pcclInvalidUsage = 4,
    /* A collective needs at least two peers in the group. Accept others with pcclUpdateTopology. */
    pcclTooFewPeers = 5,
    /* The master is unreachable, or this peer is not part of the run. Only pcclConnect may be retried. */
    pcclMasterConnectionFailed = 6,
    /* A peer is unreachable. Currently not returned. */
    pcclRankConnectionFailed = 7,
    /* The collective was aborted for the whole group. Retry it. */
    pcclRankConnectionLost = 8,
    /* No peer has the shared state. */
    pcclNoSharedStateAvailable = 9,
    /* Asynchronous operations must be awaited first. */
    pcclPendingAsyncOps = 10,
    /* Retry pcclUpdateTopology. */
    pcclUpdateTopologyFailed = 11,
    /* Retry pcclOptimizeTopology. */
    pcclTopologyOptimizationFailed = 12,
    /* This peer's shared state was rejected, or the vote on it failed. */
    pcclSharedStateSyncFailed = 13,
    /* Another peer failed. Currently not returned. */
    pcclRemoteError = 14,

    /* Aliases. */
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

/* The memory of a tensor. CUDA needs a driver and a device (pcclGetBuildInfo). */
typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    pcclDeviceCuda = 1
} pcclDeviceType_t;

/* The reduction. Integers wrap. The average is the sum divided by the number of peers, in the element type; integers
 * are truncated toward zero. Max and Min give NaN if any element is NaN. */
typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4
} pcclRedOp_t;

/* World sizes: numbers of accepted peers. After a successful collective they are those of the operation, the same on
 * all peers. */
typedef enum pcclAttribute_t {
    /* Peers of the run. */
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,
    /* Peers of this communicator's peer group. */
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,
    /* Peer groups with at least one peer. */
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,
    /* Peers of the largest peer group. */
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4,
    PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE = PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE
} pcclAttribute_t;

/* The role of a peer in a synchronisation. */
typedef enum pcclSharedStateSyncStrategy_t {
    /* The content that most peers have is elected; the others receive it. Cannot be mixed with other strategies. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0,
    /* Receives the content of others, never sends. If all peers of the group use it, all get an error. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,
    /* Its content must be elected, or the call fails. If all peers that had the state are gone, it sets the group to
     * its revision: so a run continues from an older checkpoint. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2
} pcclSharedStateSyncStrategy_t;

/*
 * The distribution of values. It is checked, and has no effect: quantisation measures the range of the values, also
 * with pcclDistributionNormal.
 */
typedef enum pcclDistributionHint_t {
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2,
    PCCL_DISTRIBUTION_HINT_NONE = pcclDistributionNone,
    PCCL_DISTRIBUTION_HINT_NORMAL = pcclDistributionNormal,
    PCCL_DISTRIBUTION_HINT_UNIFORM = pcclDistributionUniform
} pcclDistributionHint_t;

/* The quantisation of values on the wire. The source must be Float16, BFloat16, Float or Double, the operation Sum,
 * Avg, Min or Max. */
typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    /* To Uint8, Uint16 or Uint32. */
    pcclQuantMinMax = 1,
    /* To Int8, Uint8, Int16, Uint16, Int32 or Uint32. */
    pcclQuantZeroPointScale = 2
} pcclQuantizationAlgorithm_t;

/* A peer of a run. */
typedef struct pcclComm_t pcclComm_t;

/* A master. */
typedef struct pcclMasterInstance_t pcclMasterInstance_t;

/* Information about a peer. Currently unused. */
typedef struct pcclRankInfo_t pcclRankInfo_t;

/* The parameters of pcclCreateCommunicator. */
typedef struct pcclCommCreateParams {
    /* The address of the master. */
    ccoip_socket_address_t master_address;
    /* Peers reduce and synchronise with the peers of the same group. */
    uint32_t peer_group;
    /* TCP connections to each neighbour; 0 means the default. */
    uint32_t p2p_connection_pool_size;
} pcclCommCreateParams_t;

/* The elements of a reduction. */
typedef struct pcclReduceOperandDescriptor {
    pcclDataType_t datatype;
    /* Must be a valid hint; currently unused. */
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

/* The quantisation on the wire. All zero means none. With pcclQuantNone the type is ignored. */
typedef struct pcclQuantizationOptions {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

/* An all-reduce. All peers of the group must give the same descriptor for a tag. */
typedef struct pcclReduceDescriptor {
    /* Elements, not bytes. 0 is valid. */
    size_t count;
    pcclRedOp_t op;
    /* Distinguishes concurrent reductions. */
    uint64_t tag;
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

/* Another name of it. */
typedef pcclReduceDescriptor_t pcclReduceSingleDescriptor_t;

/* An all-reduce and its buffers. */
typedef struct pcclReduceOpDescriptor {
    void *sendbuf;
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

/* An all-reduce in flight. Copies refer to the same operation. */
typedef struct pcclAsyncReduceOp {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

/* The report of an all-reduce. */
typedef struct pcclReduceInfo {
    /* Peers that took part. */
    uint32_t local_world_size;
    /* Payload bytes that this peer sent and received. */
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclReduceInfo_t;

/* A tensor of a shared state. */
typedef struct pcclTensorInfo {
    /* The key: UTF-8, at most 256 bytes, unique in the state. */
    const char *name;
    void *data;
    /* Elements, not bytes. */
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    /* Peers may have different contents. A new peer still receives it at its first synchronisation. */
    bool allow_content_inequality;
} pcclTensorInfo_t;

/* The state that must be equal on all peers of a group. */
typedef struct pcclSharedState {
    /* Must grow by exactly one between successful synchronisations. */
    uint64_t revision;
    /* Entries of `infos`. */
    size_t count;
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

/* The report of a synchronisation: bytes of tensors that this peer sent and received. */
typedef struct pcclSharedStateSyncInfo {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

/* (Ringfold) Bytes that a peer sent and received: of TCP the bytes of the streams, of QUIC whole packets with headers
 * and retransmissions. */
typedef struct pcclTraffic {
    /* To and from other hosts. */
    uint64_t sent;
    uint64_t received;
    /* Through sockets within this host. Shared memory is not counted. */
    uint64_t local_sent;
    uint64_t local_received;
} pcclTraffic_t;

/* A peer's id. */
typedef struct pcclRankUuid {
    uint8_t data[16];
} pcclRankUuid_t;

/* (Ringfold) Bytes sent to a peer and received from it. The id of the master is zero. */
typedef struct pcclPeerTraffic {
    pcclRankUuid_t peer;
    pcclTraffic_t traffic;
} pcclPeerTraffic_t;

/* The features of the library on this machine: CUDA needs a driver and a device. */
typedef struct pcclBuildInfo {
    bool has_cuda_support;
} pcclBuildInfo_t;

/* ------------------------------------------------------------------------------------------------------ */
/* The library.                                                                                            */
/* ------------------------------------------------------------------------------------------------------ */

/* Initialises the library. Must be called before any communicator function; may be repeated. */
PCCL_EXPORT pcclResult_t pcclInit(void);

/* Returns the features of this build. Needs no pcclInit. */
PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *build_info_out);

/* (Ringfold) Returns the description of a result. Never null; static. */
PCCL_EXPORT const char *pcclGetErrorString(pcclResult_t result);

/*
 * (Ringfold) Returns the error of the last failed call of this thread, with the argument, peer or address. Never null;
 * empty if no call failed. Valid until the next failed call of this thread.
 */
PCCL_EXPORT const char *pcclGetLastError(void);

/* ------------------------------------------------------------------------------------------------------ */
/* Communicators.                                                                                          */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Creates a communicator. It contacts the master only in pcclConnect.
 *
 *   pcclInvalidArgument   null, an invalid address (port 0, unknown protocol), or an unreadable join token file
 */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/*
 * Leaves the run and frees the communicator. Operations in flight fail, and calls of other threads return. When it
 * has succeeded, the library uses no buffer any more. It need not be connected.
 *
 *   pcclInternalError     operations, or calls of other threads, still use their buffers after a minute; the handle is
 *                         destroyed nevertheless. Do not free or write these buffers: end the process
 */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/*
 * Connects to the master and blocks until this peer is accepted. The first peer of a run is accepted at once, others
 * when all accepted peers call pcclUpdateTopology.
 *
 *   pcclMasterConnectionFailed  the master is unreachable or rejected this peer (wrong token). May be retried.
 *   pcclInvalidUsage            connected before
 */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

/*
 * Accepts waiting peers. Must be called by every accepted peer of the run.
 *
 *   pcclPendingAsyncOps         an asynchronous all-reduce has not been awaited
 *   pcclUpdateTopologyFailed    the vote failed, or peers could not reach each other; retry
 *   pcclMasterConnectionFailed  the master is lost, or this peer was evicted; do not retry
 *   pcclInvalidUsage            not connected
 */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/*
 * Returns whether peers wait to join. Must be called by every accepted peer of the run; all get the same answer. May be
 * called during collectives.
 *
 *   pcclRankConnectionLost      the vote failed; retry
 *   pcclInvalidUsage            not connected
 */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *peers_pending_out);

/* An alias of pcclArePeersPending. */
PCCL_EXPORT pcclResult_t pcclAreNewPeersPending(const pcclComm_t *communicator, bool *peers_pending_out);

/*
 * Measures the bandwidth between peers where it is unknown, and chooses the ring with the fastest slowest link. Accepts
 * no peers. Must be called by every accepted peer of the run.
 *
 *   pcclTopologyOptimizationFailed  the vote failed, or peers could not reach each other; retry
 *   pcclPendingAsyncOps             an asynchronous all-reduce has not been awaited
 *   pcclInvalidUsage                not connected, or there is no other peer
 */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/*
 * Returns a world size. It is local: the value changes only by pcclConnect, pcclUpdateTopology, pcclOptimizeTopology and
 * collectives, and is 0 before pcclConnect.
 *
 *   pcclMasterConnectionFailed  an earlier call found that this peer is no longer part of the run
 */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                                          int *p_attribute_out);

/*
 * (Ringfold) Returns what this peer has sent and received in the run: control messages, data, shared state and probes.
 * All zero before pcclConnect.
 */
PCCL_EXPORT pcclResult_t pcclGetTraffic(const pcclComm_t *communicator, pcclTraffic_t *traffic_out);

/*
 * (Ringfold) As pcclGetTraffic, per peer. Writes at most `capacity` entries to `peers_out`, which may be null if it is 0,
 * and the number of all entries to `count_out`.
 */
PCCL_EXPORT pcclResult_t pcclGetPeerTraffic(const pcclComm_t *communicator,
                                            pcclPeerTraffic_t *PCCL_NULLABLE peers_out, size_t capacity,
                                            size_t *count_out);

/*
 * (Ringfold) Sets whether later quantised all-reduces with Sum or Avg carry over their error; off by default. What this
 * peer loses by quantising is then added to its input of the next all-reduce with the same tag, type and count. It takes
 * one float per element and tag, twice that during an operation. An aborted operation leaves it as it was; it is dropped
 * when type or count change, when the setting is turned off, and when the communicator is destroyed. Peers may differ.
 */
PCCL_EXPORT pcclResult_t pcclSetErrorFeedback(pcclComm_t *communicator, bool enabled);

/*
 * (Ringfold) Sets whether later all-reduces have the same bits whatever the plan, the transport, the chunks and the number of peers
 * per host; must be the same on all peers. Off by default, unless RINGFOLD_REPRODUCIBLE is set, which this does not turn off. A
 * quantised all-reduce is then an invalid argument.
 */
PCCL_EXPORT pcclResult_t pcclSetReproducible(pcclComm_t *communicator, bool enabled);

/*
 * (Ringfold) Sets whether later all-reduces that are not quantised continue when a peer is lost: the others send again only what is
 * missing, and the call succeeds with local_world_size, the number of peers in the result. It fails as without this if a new peer
 * is admitted at the same time, or not all pairs of peers are linked. Takes memory of about the size of the tensor; pays for large
 * tensors on slow links. Must be the same on all peers. Off by default, unless RINGFOLD_RESUME is set, which this does not turn off.
 */
PCCL_EXPORT pcclResult_t pcclSetResume(pcclComm_t *communicator, bool enabled);

/* ------------------------------------------------------------------------------------------------------ */
/* All-reduce.                                                                                             */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Reduces the buffers of all peers of the group, element by element; all peers get the same bits. Must be called with
 * the same tag by every accepted peer of the group. Blocks.
 *
 * The operation is in place if sendbuf and recvbuf are equal; otherwise they must not overlap. It succeeds on all peers,
 * or is aborted on all with the same code. After a failure an in-place buffer is restored, so that the call can be
 * retried; out of place, recvbuf is undefined. `reduce_info_out` may be null, and is written only on success. The
 * buffers may be null if count is 0.
 *
 * Both buffers may be in the memory of a CUDA device. The call waits for the work on its default stream, and the result
 * is complete on return; a failure does not change device memory.
 *
 *   pcclRankConnectionLost      aborted for the whole group: a peer was lost or did not call in time. Retry
 *   pcclTooFewPeers             there is no other peer in the group
 *   pcclInvalidUsage            not connected
 *   pcclInvalidArgument         null, an invalid enum value, a tag in flight, overlapping buffers, a count beyond the
 *                               address space, an unsupported quantisation; or aborted for the whole group because
 *                               peers gave different descriptors for this tag. A retry fails again
 *   pcclInternalError           aborted for the whole group because a peer cannot run it
 */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator,
                                       pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * Starts an all-reduce without blocking. Many may be in flight, each with its own tag; peers may start them in different
 * orders. Invalid arguments are reported here, an abort by pcclAwaitAsyncReduce. The tag is in flight until that returns.
 */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf,
                                            const pcclReduceDescriptor_t *descriptor,
                                            const pcclComm_t *communicator, pcclAsyncReduceOp_t *reduce_handle_out);

/*
 * Waits for the end of an operation and returns its result: see pcclAllReduce. `reduce_info_out` may be null.
 *
 *   pcclInvalidArgument         null, awaited before, never launched, or its communicator was destroyed
 */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * Runs several all-reduces, at most `max_in_flight` at a time, and retries aborted ones until all have succeeded.
 * `max_in_flight` may differ between peers. Blocks. The report is the sum over all operations, with the world of the
 * last one; it may be null.
 *
 *   pcclTooFewPeers             this peer is alone; some of the operations may have succeeded before
 *   pcclInvalidArgument         null, count 0, max_in_flight below 1, duplicate tags, overlapping buffers of different
 *                               operations, or as in pcclAllReduce
 */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

/* ------------------------------------------------------------------------------------------------------ */
/* Shared state.                                                                                           */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * Makes the state equal on all peers of the group. Must be called by every accepted peer of the group. Blocks.
 *
 * The contents are hashed. A peer whose content was not elected receives the tensors that differ, in place, and
 * `revision` is set to the elected one. The first synchronisation takes the first caller's revision; each later one must
 * be the last one plus one. A peer with a greater revision is rejected. A peer with an older revision is not rejected,
 * unlike in PCCL's documents: it receives the elected content and revision. Two tensors may be the same memory, but must
 * not overlap partially. After a failure `revision` and `sync_info_out` are unchanged. `sync_info_out` may be null.
 *
 * With three arguments the strategy is ENFORCE_POPULAR:
 *   pcclSynchronizeSharedState(communicator, &state, &info)
 *   pcclSynchronizeSharedState(communicator, &state, strategy, &info)
 * The exported symbol takes four. `&pcclSynchronizeSharedState` is its address; in C++, which has two overloads, it must
 * be assigned to a typed pointer.
 *
 *   pcclNoSharedStateAvailable  no peer offers the next revision, or all peers with the elected content were lost
 *                               before it was received
 *   pcclSharedStateSyncFailed   this peer's state was rejected (a revision beyond the next one; other keys, types or
 *                               counts than the elected state; a strategy that cannot be mixed with the others'), or
 *                               the vote failed
 *   pcclPendingAsyncOps         an asynchronous all-reduce has not been awaited
 *   pcclInvalidUsage            not connected
 *   pcclInvalidArgument         null, a key that is null, duplicate or not UTF-8, null data with a count, overlapping
 *                               tensors, a CUDA tensor without CUDA support or outside of CUDA memory
 */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out);

/* ------------------------------------------------------------------------------------------------------ */
/* Masters.                                                                                                */
/* ------------------------------------------------------------------------------------------------------ */

/*
 * (Ringfold) Sets a setting, such as "silence_max" to "1s", for masters and communicators that are created from now on; null
 * undoes it. It has priority over the environment (RINGFOLD_SILENCE_MAX) and over the TOML file, which RINGFOLD_CONFIG or
 * the setting "config" names. docs/settings.md has all settings. Needs no pcclInit.
 *
 *   pcclInvalidArgument         the name is null or unknown, or the value is invalid; pcclGetLastError says why
 */
PCCL_EXPORT pcclResult_t pcclSetOption(const char *name, const char *PCCL_NULLABLE value);

/*
 * (Ringfold) Sets the files with certificates of the run, made by `ringfold keys`, for masters and communicators that are
 * created from now on: the CA of the run, the certificate of this process and its private key, and the revocation list,
 * which may be null. All connections are then encrypted, both ends must have certificates of the run, and no token is
 * needed. The files are read again when they change. If all are null, the environment decides again. Needs no pcclInit.
 *
 *   pcclInvalidArgument         some are null, or not UTF-8. What is wrong with the files, pcclCreateCommunicator
 *                               and pcclRunMaster report
 */
PCCL_EXPORT pcclResult_t pcclSetTls(const char *PCCL_NULLABLE ca_path, const char *PCCL_NULLABLE certificate_path,
                                    const char *PCCL_NULLABLE key_path, const char *PCCL_NULLABLE revoked_path);

/*
 * Creates a master and binds it to this address, so that pcclGetMasterAddress returns its port. Peers that connect
 * before pcclRunMaster wait for it. If the address is not available yet, pcclRunMaster tries again. Needs no pcclInit.
 *
 *   pcclInvalidArgument         null, an unknown protocol, or an unreadable join token file
 */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t **p_master_handle_out);

/*
 * Starts the master on a thread of the library; binds the address if pcclCreateMaster could not. Returns at once.
 *
 *   pcclInvalidUsage            the address is in use, or not an address of this machine
 *   pcclInvalidArgument         run before
 */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance);

/*
 * (Ringfold) Returns the address of a master, for port 0, which means any free port.
 *
 *   pcclInvalidUsage            not bound: the address was not available, and the master was not run
 */
PCCL_EXPORT pcclResult_t pcclGetMasterAddress(const pcclMasterInstance_t *master_instance,
                                              ccoip_socket_address_t *address_out);

/* Stops the master without waiting for its end. May be repeated, and called from any thread. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance);

/*
 * Waits until the master has stopped.
 *
 *   pcclInvalidUsage            never run
 */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance);

/* Stops the master, waits for its end and frees it. The port is free when it returns. */
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

/* Selects the function by the number of arguments: four or three. */
#define PCCL_FIFTH_(a, b, c, d, fifth, ...) fifth
#define pcclSynchronizeSharedState(...)                                                                      \
    PCCL_FIFTH_(__VA_ARGS__, pcclSynchronizeSharedState, pcclSynchronizePopularState_, unused)(__VA_ARGS__)
#endif

#endif /* PCCL_H */
