#include <ccoip.h>
#include <pccl.h>
#include <ccoip_inet.h>
#include <ccoip.h>
#include <pccl.h>

int main(void) {
    ccoip_socket_address_t address = {{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, CCOIP_PROTOCOL_PORT_MASTER};
    pcclCommCreateParams_t params = {{{inetIPv4, {{0}}, {{0}}}, 0}, 0, 0};
    params.master_address = address;
    return params.master_address.port == 48148 ? 0 : 1;
}
