// Shared by the C++ examples: results as exceptions, the arguments, and a communicator that leaves the run when it goes out
// of scope.
#ifndef EXAMPLES_PEER_HPP
#define EXAMPLES_PEER_HPP

#include <pccl.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

inline void check(pcclResult_t result) {
    if (result != pcclSuccess) {
        throw std::runtime_error(std::string(pcclGetErrorString(result)) + " (" + pcclGetLastError() + ")");
    }
}

// "127.0.0.1:48148" as an address.
inline ccoip_socket_address_t address_of(const char *text) {
    unsigned a, b, c, d, port;
    if (std::sscanf(text, "%3u.%3u.%3u.%3u:%5u", &a, &b, &c, &d, &port) != 5 || (a | b | c | d) > 255 ||
        port > 65535) {
        throw std::invalid_argument(std::string(text) + " is not an address; expected IP:PORT, e.g. 127.0.0.1:48148");
    }
    const auto byte = [](unsigned value) { return static_cast<uint8_t>(value); };
    return {{inetIPv4, {{byte(a), byte(b), byte(c), byte(d)}}, {}}, static_cast<uint16_t>(port)};
}

// The argument PEERS: the peers that a step needs; 2 if it is not given.
inline int peers_of(int argc, char **argv) {
    if (argc <= 2) return 2;
    char *end = nullptr;
    const long peers = std::strtol(argv[2], &end, 10);
    if (*end != '\0' || peers < 2 || peers > 1000) {
        throw std::invalid_argument(std::string(argv[2]) + " is not a number of peers; expected 2 to 1000");
    }
    return static_cast<int>(peers);
}

// A peer of the run.
class Peer {
public:
    explicit Peer(const char *master) {
        pcclCommCreateParams_t params{};
        params.master_address = address_of(master);
        check(pcclInit());
        check(pcclCreateCommunicator(&params, &comm_));
        if (const auto result = pcclConnect(comm_); result != pcclSuccess) {
            const std::string why = pcclGetLastError();
            pcclDestroyCommunicator(comm_);
            throw std::runtime_error(std::string(pcclGetErrorString(result)) + " (" + why + ")");
        }
    }
    Peer(const Peer &) = delete;
    Peer &operator=(const Peer &) = delete;
    ~Peer() { pcclDestroyCommunicator(comm_); }

    pcclComm_t *get() const { return comm_; }

    int world() const {
        int world = 0;
        check(pcclGetAttribute(comm_, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &world));
        return world;
    }

    // Admits waiting peers. A failed vote is repeated; a lost master is an error.
    void admit() const {
        pcclResult_t result;
        while ((result = pcclUpdateTopology(comm_)) == pcclUpdateTopologyFailed) {
            std::fprintf(stderr, "the topology could not be updated: %s\n", pcclGetLastError());
        }
        check(result);
    }

private:
    pcclComm_t *comm_ = nullptr;
};

#endif // EXAMPLES_PEER_HPP
