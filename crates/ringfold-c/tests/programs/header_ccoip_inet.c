#include <ccoip_inet.h>

int main(void) {
    ccoip_socket_address_t address = {{inetIPv6, {{0}}, {{0}}}, 1};
    return address.port == 1 && address.inet.protocol == inetIPv6 ? 0 : 1;
}
