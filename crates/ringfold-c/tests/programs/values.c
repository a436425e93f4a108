/* The values and layouts that are part of the binary interface; a wrong one does not compile. */
#include <pccl.h>

#define HOLDS(name, condition) typedef char holds_##name[(condition) ? 1 : -1]
#define OFFSET(type, field, bytes) HOLDS(type##_##field, offsetof(type, field) == (bytes))
#define SIZE(type, bytes) HOLDS(type, sizeof(type) == (bytes))

HOLDS(results, pcclSuccess == 0 && pcclNotInitialized == 1 && pcclInternalError == 2 && pcclInvalidArgument == 3 &&
                   pcclInvalidUsage == 4 && pcclTooFewPeers == 5 && pcclMasterConnectionFailed == 6 &&
                   pcclRankConnectionFailed == 7 && pcclRankConnectionLost == 8 && pcclNoSharedStateAvailable == 9 &&
                   pcclPendingAsyncOps == 10 && pcclUpdateTopologyFailed == 11 &&
                   pcclTopologyOptimizationFailed == 12);
HOLDS(aliases, (int) pcclOptimizeTopologyFailed == 12 && (int) pcclSystemError == 2 && pcclRemoteError == 14 &&
                   pcclSharedStateSyncFailed == 13);
HOLDS(types, pcclUint8 == 0 && pcclInt8 == 1 && pcclInt16 == 2 && pcclUint16 == 3 && pcclUint32 == 4 &&
                 pcclInt32 == 5 && pcclUint64 == 6 && pcclInt64 == 7 && pcclFloat16 == 8 && pcclBFloat16 == 9 &&
                 pcclFloat == 10 && pcclDouble == 11);
HOLDS(devices, pcclDeviceCpu == 0 && pcclDeviceCuda == 1);
HOLDS(operations, pcclSum == 0 && pcclAvg == 1 && pcclProd == 2 && pcclMax == 3 && pcclMin == 4);
HOLDS(attributes, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE == 1 && PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE == 2 &&
                      PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS == 3 &&
                      PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE == 4 &&
                      (int) PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE == 2);
HOLDS(strategies, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR == 0 &&
                      PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY == 1 &&
                      PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY == 2);
HOLDS(hints, pcclDistributionNone == 0 && pcclDistributionNormal == 1 && pcclDistributionUniform == 2 &&
                 (int) PCCL_DISTRIBUTION_HINT_NONE == 0 && (int) PCCL_DISTRIBUTION_HINT_NORMAL == 1 &&
                 (int) PCCL_DISTRIBUTION_HINT_UNIFORM == 2);
HOLDS(quantisation, pcclQuantNone == 0 && pcclQuantMinMax == 1 && pcclQuantZeroPointScale == 2);

#if UINTPTR_MAX == 0xffffffffffffffff
SIZE(pcclResult_t, 4);
SIZE(ccoip_inet_address_t, 24);
SIZE(ccoip_socket_address_t, 28);
SIZE(pcclCommCreateParams_t, 36);
SIZE(pcclReduceDescriptor_t, 40);
SIZE(pcclReduceSingleDescriptor_t, 40);
OFFSET(pcclReduceDescriptor_t, tag, 16);
OFFSET(pcclReduceDescriptor_t, quantization_options, 32);
SIZE(pcclReduceOpDescriptor_t, 56);
SIZE(pcclAsyncReduceOp_t, 16);
SIZE(pcclReduceInfo_t, 24);
SIZE(pcclTensorInfo_t, 40);
OFFSET(pcclTensorInfo_t, allow_content_inequality, 32);
SIZE(pcclSharedState_t, 24);
SIZE(pcclSharedStateSyncInfo_t, 16);
SIZE(pcclRankUuid_t, 16);
SIZE(pcclBuildInfo_t, 1);
#endif

/* Programs name structs by their tags, and mark what they export and what may be null. */
struct pcclReduceInfo by_tag;
struct ccoip_socket_address address_by_tag;
PCCL_EXPORT int own(const pcclRankInfo_t *PCCL_NULLABLE info);

int own(const pcclRankInfo_t *PCCL_NULLABLE info) {
    return info == NULL ? 0 : 1;
}

/* The results that the documents name can all be told apart. */
static int told_apart(pcclResult_t result) {
    switch (result) {
        case pcclSuccess: return 0;
        case pcclNotInitialized: return 1;
        case pcclInvalidArgument: return 2;
        case pcclInvalidUsage: return 3;
        case pcclMasterConnectionFailed: return 4;
        case pcclRankConnectionFailed: return 5;
        case pcclRankConnectionLost: return 6;
        case pcclUpdateTopologyFailed: return 7;
        case pcclTopologyOptimizationFailed: return 8;
        case pcclSystemError: return 9;
        case pcclRemoteError: return 10;
        default: return 11;
    }
}

int main(void) {
    pcclReduceInfo_t *info = &by_tag;
    ccoip_socket_address_t *address = &address_by_tag;
    return info->local_world_size == 0 && address->port == 0 ? told_apart(pcclSuccess) + own(NULL) : 1;
}
