/* Every misuse that a lone process can commit, and the result that it gets. */
#include "check.h"
#include <string.h>

static float values[8];

static pcclReduceDescriptor_t sum_of_four(void) {
    pcclReduceDescriptor_t descriptor;
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = 4;
    descriptor.src_descriptor.datatype = pcclFloat;
    return descriptor;
}

static void before_init(void) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 1}, 0, 0};
    pcclComm_t *comm = NULL;
    pcclAsyncReduceOp_t handle = {NULL, 0};
    pcclBuildInfo_t build = {true};
    int value;
    bool pending;
    EXPECT(pcclNotInitialized, pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclNotInitialized, pcclConnect(comm));
    EXPECT(pcclNotInitialized, pcclUpdateTopology(comm));
    EXPECT(pcclNotInitialized, pcclOptimizeTopology(comm));
    EXPECT(pcclNotInitialized, pcclArePeersPending(comm, &pending));
    EXPECT(pcclNotInitialized, pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &value));
    EXPECT(pcclNotInitialized, pcclAllReduce(NULL, NULL, NULL, comm, NULL));
    EXPECT(pcclNotInitialized, pcclAllReduceAsync(NULL, NULL, NULL, comm, NULL));
    EXPECT(pcclNotInitialized, pcclAwaitAsyncReduce(&handle, NULL));
    EXPECT(pcclNotInitialized, pcclAllReduceMultipleWithRetry(NULL, 0, comm, NULL, 1));
    EXPECT(pcclNotInitialized, pcclSynchronizeSharedState(comm, NULL, NULL));
    EXPECT(pcclNotInitialized, pcclDestroyCommunicator(comm));
    OK(pcclGetBuildInfo(&build));
    EXPECT(pcclInvalidArgument, pcclGetBuildInfo(NULL));
    HOLDS(strlen(pcclGetErrorString(pcclRankConnectionLost)) > 0 && strlen(pcclGetErrorString((pcclResult_t) 99)) > 0);
}

static void handles(pcclComm_t *comm) {
    char garbage[64];
    pcclComm_t *others[3];
    pcclAsyncReduceOp_t handle = {NULL, 0};
    size_t i;
    int value;
    others[0] = NULL;
    others[1] = (pcclComm_t *) (void *) garbage;
    others[2] = (pcclComm_t *) (void *) ((char *) comm + 1);
    for (i = 0; i < 3; i++) {
        handle.comm = others[i];
        EXPECT(pcclInvalidArgument, pcclConnect(others[i]));
        EXPECT(pcclInvalidArgument, pcclUpdateTopology(others[i]));
        EXPECT(pcclInvalidArgument, pcclOptimizeTopology(others[i]));
        EXPECT(pcclInvalidArgument, pcclGetAttribute(others[i], PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &value));
        EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&handle, NULL));
        EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(others[i]));
    }
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(NULL, NULL));
    handle.comm = comm;
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&handle, NULL));
    EXPECT(pcclInvalidArgument, pcclConnect((pcclComm_t *) (void *) garbage));
    HOLDS(strlen(pcclGetLastError()) > 0);
}

static void creation(pcclCommCreateParams_t params) {
    pcclComm_t *comm = NULL;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(NULL, &comm));
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, NULL));
    params.master_address.inet.protocol = (ccoip_inet_protocol_t) 7;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));
    params.master_address.inet.protocol = inetIPv6;
    params.master_address.port = 0;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));
    params.master_address.port = 1;
    params.p2p_connection_pool_size = 1u << 20;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));
    HOLDS(comm == NULL);
}

static void reduce_arguments(pcclComm_t *comm) {
    pcclReduceDescriptor_t good = sum_of_four(), bad = good;
    pcclAsyncReduceOp_t handle;
    EXPECT(pcclInvalidArgument, pcclAllReduce(NULL, values, &good, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, NULL, &good, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, NULL, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(values, values, &good, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values + 2, &good, comm, NULL));
    HOLDS(strstr(pcclGetLastError(), "overlap") != NULL);
    bad.op = (pcclRedOp_t) 5;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(values, values, &bad, comm, &handle));
    bad = good;
    bad.src_descriptor.datatype = (pcclDataType_t) 12;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
    bad = good;
    bad.src_descriptor.distribution_hint = (pcclDistributionHint_t) 3;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
    bad = good;
    bad.quantization_options.algorithm = (pcclQuantizationAlgorithm_t) 3;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
    bad = good;
    bad.quantization_options.algorithm = pcclQuantMinMax;
    bad.quantization_options.quantized_datatype = (pcclDataType_t) -1;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
    bad = good;
    bad.count = SIZE_MAX / 2;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &bad, comm, NULL));
}

static void several_arguments(pcclComm_t *comm) {
    pcclReduceOpDescriptor_t several[2];
    several[0].sendbuf = several[0].recvbuf = values;
    several[1].sendbuf = several[1].recvbuf = values + 4;
    several[0].descriptor = several[1].descriptor = sum_of_four();
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 2, comm, NULL, 1));
    HOLDS(strstr(pcclGetLastError(), "tag") != NULL);
    several[1].descriptor.tag = 1;
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(NULL, 2, comm, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 0, comm, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 2, NULL, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 2, comm, NULL, 0));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 2, comm, NULL, -1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, SIZE_MAX, comm, NULL, 1));
    several[1].recvbuf = values + 2;
    several[1].sendbuf = values + 2;
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(several, 2, comm, NULL, 1));
}

static void state_arguments(pcclComm_t *comm) {
    pcclTensorInfo_t good[2] = {{"a", values, 4, pcclFloat, pcclDeviceCpu, false},
                                {"b", values + 4, 4, pcclFloat, pcclDeviceCpu, false}};
    pcclTensorInfo_t bad[2];
    pcclSharedState_t state = {3, 2, NULL};
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, NULL, NULL));
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, NULL));
    state.infos = good;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, (pcclSharedStateSyncStrategy_t) 3, NULL));
    state.infos = bad;
#define STATE_WITH(change)                                                                                   \
    memcpy(bad, good, sizeof bad);                                                                           \
    change;                                                                                                  \
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, NULL))
    STATE_WITH(bad[1].name = NULL);
    STATE_WITH(bad[1].name = "a");
    STATE_WITH(bad[1].name = "\xff");
    STATE_WITH(bad[1].data = NULL);
    STATE_WITH(bad[1].data = values + 2);
    STATE_WITH(bad[1].count = SIZE_MAX / 4);
    STATE_WITH(bad[1].datatype = (pcclDataType_t) 12);
    STATE_WITH(bad[1].device_type = (pcclDeviceType_t) 2);
    STATE_WITH(bad[1].device_type = pcclDeviceCuda);
    HOLDS(strstr(pcclGetLastError(), "CUDA") != NULL);
    HOLDS(state.revision == 3);
}

static void not_connected(pcclComm_t *comm) {
    pcclReduceDescriptor_t good = sum_of_four();
    pcclReduceOpDescriptor_t several;
    pcclAsyncReduceOp_t handle;
    pcclTensorInfo_t tensor = {"a", values, 4, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state = {0, 1, NULL};
    int value = -1;
    bool pending;
    state.infos = &tensor;
    several.sendbuf = several.recvbuf = values;
    several.descriptor = good;
    EXPECT(pcclInvalidUsage, pcclUpdateTopology(comm));
    EXPECT(pcclInvalidUsage, pcclOptimizeTopology(comm));
    EXPECT(pcclInvalidUsage, pcclArePeersPending(comm, &pending));
    EXPECT(pcclInvalidUsage, pcclAreNewPeersPending(comm, &pending));
    EXPECT(pcclInvalidUsage, pcclAllReduce(values, values, &good, comm, NULL));
    EXPECT(pcclInvalidUsage, pcclAllReduceAsync(values, values, &good, comm, &handle));
    EXPECT(pcclInvalidUsage, pcclAllReduceMultipleWithRetry(&several, 1, comm, NULL, 1));
    EXPECT(pcclInvalidUsage, pcclSynchronizeSharedState(comm, &state, NULL));
    OK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &value));
    HOLDS(value == 0);
}

static void alone(pcclComm_t *comm) {
    pcclReduceDescriptor_t good = sum_of_four();
    pcclReduceOpDescriptor_t several;
    pcclAsyncReduceOp_t handle;
    pcclTensorInfo_t tensor = {"a", values, 4, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state = {7, 1, NULL};
    pcclSharedStateSyncInfo_t info = {9, 9};
    int value = -1;
    bool pending = true;
    state.infos = &tensor;
    several.sendbuf = several.recvbuf = values;
    several.descriptor = good;
    EXPECT(pcclInvalidUsage, pcclConnect(comm));
    OK(pcclUpdateTopology(comm));
    EXPECT(pcclInvalidArgument, pcclArePeersPending(comm, NULL));
    OK(pcclArePeersPending(comm, &pending));
    HOLDS(!pending);
    EXPECT(pcclInvalidUsage, pcclOptimizeTopology(comm));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, NULL));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, (pcclAttribute_t) 0, &value));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, (pcclAttribute_t) 5, &value));
    OK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &value));
    HOLDS(value == 1);
    OK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS, &value));
    HOLDS(value == 1);
    EXPECT(pcclTooFewPeers, pcclAllReduce(values, values, &good, comm, NULL));
    EXPECT(pcclTooFewPeers, pcclAllReduceAsync(values, values, &good, comm, &handle));
    EXPECT(pcclTooFewPeers, pcclAllReduceMultipleWithRetry(&several, 1, comm, NULL, 4));
    handle.comm = comm;
    handle.tag = 0;
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&handle, NULL));
    OK(pcclSynchronizeSharedState(comm, &state, &info));
    HOLDS(state.revision == 7 && info.tx_bytes == 0 && info.rx_bytes == 0);
    state.revision = 8;
    OK(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    state.revision = 10;
    EXPECT(pcclSharedStateSyncFailed, pcclSynchronizeSharedState(comm, &state, NULL));
    HOLDS(state.revision == 10);
    state.revision = 8;
    EXPECT(pcclNoSharedStateAvailable, pcclSynchronizeSharedState(comm, &state, NULL));
    good.quantization_options.algorithm = pcclQuantMinMax;
    good.quantization_options.quantized_datatype = pcclFloat;
    EXPECT(pcclInvalidArgument, pcclAllReduce(values, values, &good, comm, NULL));
}

int main(void) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 1}, 0, 0};
    pcclMasterInstance_t *master = NULL;
    pcclComm_t *comm = NULL;
    before_init();
    OK(pcclInit());
    OK(pcclInit());
    creation(params);

    /* Nobody listens on the discard port's neighbour; a communicator may try again, and need not be connected. */
    OK(pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));
    EXPECT(pcclInvalidArgument, pcclConnect(comm));
    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(comm));

    OK(pcclCreateMaster(loopback(0), &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &params.master_address));
    OK(pcclCreateCommunicator(&params, &comm));
    handles(comm);
    reduce_arguments(comm);
    several_arguments(comm);
    state_arguments(comm);
    not_connected(comm);
    EXPECT(pcclInvalidArgument, pcclConnect((pcclComm_t *) (void *) master));
    EXPECT(pcclInvalidArgument, pcclRunMaster((pcclMasterInstance_t *) (void *) comm));
    OK(pcclConnect(comm));
    reduce_arguments(comm);
    state_arguments(comm);
    alone(comm);
    OK(pcclDestroyCommunicator(comm));
    OK(pcclDestroyMaster(master));
    return 0;
}
