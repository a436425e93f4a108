#include <ccoip.h>

int main(void) {
    ccoip_socket_address_t address = {{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, CCOIP_PROTOCOL_PORT_MASTER};
    uint16_t others[] = {CCOIP_PROTOCOL_PORT_SHARED_STATE, CCOIP_PROTOCOL_PORT_P2P,
                         CCOIP_PROTOCOL_PORT_BANDWIDTH};
    return address.port == 48148 && others[0] == 48149 && others[1] == 48150 && others[2] == 48151 ? 0 : 1;
}
