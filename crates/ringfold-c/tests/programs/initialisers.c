/* The forms in which C users write the structs. */
#include <ccoip.h>
#include <pccl.h>

static const uint8_t MASTER_IP[4] = {127, 0, 0, 1};

static float weights[8];

int main(void) {
    pcclCommCreateParams_t designated = {
        .master_address = {.inet = {.protocol = inetIPv4, .ipv4 = {127, 0, 0, 1}}, .port = 48148},
        .peer_group = 0};
    pcclCommCreateParams_t computed = {
        .master_address = {.inet = {.protocol = inetIPv4,
                                    .ipv4 = {MASTER_IP[0], MASTER_IP[1], MASTER_IP[2], MASTER_IP[3]}},
                           .port = CCOIP_PROTOCOL_PORT_MASTER},
        .peer_group = 1,
        .p2p_connection_pool_size = 2};
    pcclCommCreateParams_t by_data = {
        .master_address = {.inet = {.protocol = inetIPv6, .ipv6 = {.data = {[15] = 1}}}, .port = 1}};
    ccoip_socket_address_t elided = {inetIPv4, 127, 0, 0, 1};
    pcclTensorInfo_t tensor = {.name = "w", .data = weights, .count = 8, .datatype = pcclFloat};
    pcclTensorInfo_t positional = {"w", weights, 8, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state = {.count = 1, .infos = &tensor};
    pcclReduceDescriptor_t tail = {.count = 4, .src_descriptor = {.datatype = pcclFloat}};
    pcclReduceOpDescriptor_t several[] = {{weights, weights, {8, pcclAvg, 7, {pcclFloat}}},
                                          {.sendbuf = weights, .recvbuf = weights, .descriptor = {.count = 8}}};
    pcclReduceInfo_t info = {0};

    assert(designated.master_address.inet.ipv4.data[0] == 127 && designated.p2p_connection_pool_size == 0);
    assert(computed.master_address.inet.ipv4.data[3] == 1 && computed.master_address.port == 48148);
    assert(by_data.master_address.inet.ipv6.data[15] == 1 && elided.inet.ipv4.data[3] == 1);
    assert(tensor.device_type == pcclDeviceCpu && !tensor.allow_content_inequality && positional.count == 8);
    assert(state.revision == 0 && tail.op == pcclSum && tail.quantization_options.algorithm == pcclQuantNone);
    assert(several[0].descriptor.tag == 7 && several[1].descriptor.tag == 0 && info.tx_bytes == 0);
    return (int) info.rx_bytes;
}
