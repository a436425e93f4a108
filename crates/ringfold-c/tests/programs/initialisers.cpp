// The forms in which C++20 users write the structs, at compile time where they can.
#include <ccoip.h>
#include <pccl.h>
#include <type_traits>

static constexpr uint8_t MASTER_IP[4] = {127, 0, 0, 1};
static constexpr uint16_t MASTER_PORT{CCOIP_PROTOCOL_PORT_MASTER};
static constexpr uint16_t OTHER_PORTS[]{CCOIP_PROTOCOL_PORT_SHARED_STATE, CCOIP_PROTOCOL_PORT_P2P,
                                        CCOIP_PROTOCOL_PORT_BANDWIDTH};

static constexpr pcclCommCreateParams_t designated{
    .master_address = {.inet = {.protocol = inetIPv4, .ipv4 = {127, 0, 0, 1}}, .port = 48148}, .peer_group = 0};
static constexpr pcclCommCreateParams_t computed{
    .master_address = {.inet = {.protocol = inetIPv4,
                                .ipv4 = {MASTER_IP[0], MASTER_IP[1], MASTER_IP[2], MASTER_IP[3]}},
                       .port = MASTER_PORT},
    .p2p_connection_pool_size = 3};
static constexpr ccoip_socket_address_t ipv6{.inet = {.protocol = inetIPv6, .ipv6 = {.data = {0, 1}}}, .port = 1};
static constexpr pcclReduceDescriptor_t tail{.count = 4, .src_descriptor = {.datatype = pcclFloat}};

static_assert(designated.master_address.inet.ipv4.data[0] == 127 && designated.p2p_connection_pool_size == 0);
static_assert(computed.master_address.inet.ipv4.data[3] == 1 && computed.p2p_connection_pool_size == 3);
static_assert(ipv6.inet.ipv6.data[1] == 1 && OTHER_PORTS[2] == 48151);
static_assert(tail.op == pcclSum && tail.quantization_options.algorithm == pcclQuantNone);
static_assert(std::is_aggregate_v<pcclTensorInfo_t> && std::is_trivial_v<pcclSharedState_t>);
static_assert(std::is_convertible_v<pcclResult_t, int>, "enums are unscoped");

int main() {
    static float weights[8];
    pcclTensorInfo_t tensor{.name = "w", .data = weights, .count = 8, .datatype = pcclFloat};
    pcclSharedState_t state{.revision = 1, .infos = &tensor};
    pcclReduceOpDescriptor_t several[] = {{.sendbuf = weights, .recvbuf = weights, .descriptor = {.count = 8}}};
    pcclSharedStateSyncInfo_t info{};
    assert(state.count == 0 && several[0].descriptor.tag == 0);

    // Both forms of the call, and the address of the one that is exported.
    pcclResult_t (*synchronize)(const pcclComm_t *, pcclSharedState_t *, pcclSharedStateSyncStrategy_t,
                                pcclSharedStateSyncInfo_t *) = &pcclSynchronizeSharedState;
    assert(pcclInit() == pcclSuccess);
    assert(pcclSynchronizeSharedState(nullptr, &state, &info) == pcclInvalidArgument);
    assert(pcclSynchronizeSharedState(nullptr, &state, nullptr) == pcclInvalidArgument);
    assert(synchronize(nullptr, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, &info) == pcclInvalidArgument);
    return 0;
}
