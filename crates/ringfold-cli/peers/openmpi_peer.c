/* One rank of Open MPI, measured by `ringfold bench --against openmpi`.
 *
 *   openmpi_peer SOCKET
 *
 * Commands arrive as lines over a Unix socket, answers are lines of JSON; bench/README.md lists them. Between commands every
 * rank sleeps in a read: an MPI call would spin, and disturb the system that is being measured. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* No command takes longer; SIGALRM ends a stuck rank. */
enum { TIMEOUT_S = 1200 };

struct dtype {
    const char *name;
    MPI_Datatype type;
    size_t bytes;
};

struct point {
    char collective[32], dtype[16], op[16], place[8], check[8];
    long count;
};

static int rank, world;
static FILE *line_in, *line_out;
static unsigned char *send_bytes, *recv_bytes;
static size_t touched_send, touched_recv, base_bytes;

/* The call that is being measured. */
static struct {
    enum { BARRIER, ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, TRANSFER } kind;
    int in_place;
    int count, part;
    MPI_Datatype type;
    MPI_Op op;
} call;

static const char *const KINDS[] = {"barrier",        "all_reduce", "reduce",  "broadcast",  "all_gather",
                                    "reduce_scatter", "gather",     "scatter", "all_to_all", "transfer"};

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A field of /proc/self/status: VmRSS is the memory of this process, VmHWM its peak. */
static size_t resident_bytes(const char *field) {
    char text[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(text, sizeof text, status))
        if (!strncmp(text, field, strlen(field))) kib = strtoul(text + strlen(field) + 1, NULL, 10);
    if (status) fclose(status);
    return kib * 1024;
}

/* Resets VmHWM. Without permission the peak is that of the whole process. */
static void reset_peak(void) {
    FILE *clear = fopen("/proc/self/clear_refs", "w");
    if (!clear) return;
    fputs("5", clear);
    fclose(clear);
}

static void reply(const char *text) {
    fputs(text, line_out);
    fputc('\n', line_out);
    fflush(line_out);
}

static int unsupported(const char *what, const char *name) {
    char text[128];
    snprintf(text, sizeof text, "{\"unsupported\": \"the Open MPI program does not support %s %s\"}", what, name);
    reply(text);
    return 0;
}

static int find_dtype(const char *name, MPI_Datatype *type, size_t *bytes) {
    const struct dtype all[] = {
        {"u8", MPI_UINT8_T, 1},   {"i8", MPI_INT8_T, 1},   {"u16", MPI_UINT16_T, 2}, {"i16", MPI_INT16_T, 2},
        {"u32", MPI_UINT32_T, 4}, {"i32", MPI_INT32_T, 4}, {"u64", MPI_UINT64_T, 8}, {"i64", MPI_INT64_T, 8},
        {"f32", MPI_FLOAT, 4},    {"f64", MPI_DOUBLE, 8},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) {
            *type = all[i].type;
            *bytes = all[i].bytes;
            return 1;
        }
    return 0;
}

static int find_op(const char *name, MPI_Op *op) {
    const struct {
        const char *name;
        MPI_Op op;
    } all[] = {{"sum", MPI_SUM}, {"prod", MPI_PROD}, {"max", MPI_MAX}, {"min", MPI_MIN},
               {"band", MPI_BAND}, {"bor", MPI_BOR}, {"bxor", MPI_BXOR}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) {
            *op = all[i].op;
            return 1;
        }
    return 0;
}

static void make_call(void) {
    MPI_Comm comm = MPI_COMM_WORLD;
    void *s = send_bytes, *r = recv_bytes;
    int n = call.count, part = call.part, last = world - 1;
    MPI_Datatype t = call.type;
    switch (call.kind) {
    case BARRIER: MPI_Barrier(comm); break;
    case ALL_REDUCE:
        if (call.in_place)
            MPI_Allreduce(MPI_IN_PLACE, s, n, t, call.op, comm);
        else
            MPI_Allreduce(s, r, n, t, call.op, comm);
        break;
    case REDUCE:
        if (rank == 0)
            MPI_Reduce(MPI_IN_PLACE, s, n, t, call.op, 0, comm);
        else
            MPI_Reduce(s, NULL, n, t, call.op, 0, comm);
        break;
    case BROADCAST: MPI_Bcast(s, n, t, 0, comm); break;
    case ALL_GATHER: MPI_Allgather(s, part, t, r, part, t, comm); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(s, r, part, t, call.op, comm); break;
    case GATHER: MPI_Gather(s, part, t, r, part, t, 0, comm); break;
    case SCATTER: MPI_Scatter(s, part, t, r, part, t, 0, comm); break;
    case ALL_TO_ALL: MPI_Alltoall(s, part, t, r, part, t, comm); break;
    case TRANSFER: /* from the first rank to the last and back */
        if (rank == 0) {
            MPI_Send(s, n, t, last, 0, comm);
            MPI_Recv(r, n, t, last, 0, comm, MPI_STATUS_IGNORE);
        } else if (rank == last) {
            MPI_Recv(r, n, t, 0, 0, comm, MPI_STATUS_IGNORE);
            MPI_Send(s, n, t, 0, 0, comm);
        }
        break;
    }
}

/* Elements of any type as numbers. */
static void put(unsigned char *to, const char *dtype, long index, int value) {
    switch (dtype[0] == 'f' ? (dtype[1] == '3' ? 'f' : 'd') : dtype[1]) {
    case 'f': ((float *)to)[index] = (float)value; break;
    case 'd': ((double *)to)[index] = value; break;
    case '8': to[index] = (uint8_t)value; break;
    case '1': ((uint16_t *)to)[index] = (uint16_t)value; break;
    case '3': ((uint32_t *)to)[index] = (uint32_t)value; break;
    case '6': ((uint64_t *)to)[index] = (uint64_t)value; break;
    }
}

static double get(const unsigned char *from, const char *dtype, long index) {
    switch (dtype[0] == 'f' ? (dtype[1] == '3' ? 'f' : 'd') : dtype[1]) {
    case 'f': return ((const float *)from)[index];
    case 'd': return ((const double *)from)[index];
    case '8': return from[index];
    case '1': return ((const uint16_t *)from)[index];
    case '3': return ((const uint32_t *)from)[index];
    default: return (double)((const uint64_t *)from)[index];
    }
}

/* Checks both ends of each part of the result. Every rank has filled its input with its rank plus one. */
static void check_result(const struct point *point, char *text, size_t size) {
    double reduced = 0;
    int parts = 1, root = rank == 0;
    const unsigned char *result = recv_bytes;
    long elements = 0;
    snprintf(text, size, "\"ok\"");
    for (int r = 1; r <= world; r++) {
        if (!strcmp(point->op, "sum")) reduced += r;
        if (!strcmp(point->op, "prod")) reduced = r == 1 ? 1 : reduced * r;
    }
    if (!strcmp(point->op, "max")) reduced = world;
    if (!strcmp(point->op, "min")) reduced = 1;
    int reduces = call.kind == ALL_REDUCE || call.kind == REDUCE || call.kind == REDUCE_SCATTER;
    if (reduces && reduced == 0) {
        snprintf(text, size, "null");
        return;
    }
    switch (call.kind) {
    case ALL_REDUCE: elements = call.count; if (call.in_place) result = send_bytes; break;
    case REDUCE: elements = root ? call.count : 0; result = send_bytes; break;
    case BROADCAST: elements = call.count; result = send_bytes; break;
    case REDUCE_SCATTER: case SCATTER: elements = call.part; break;
    case ALL_GATHER: case ALL_TO_ALL: elements = (long)call.part * world; parts = world; break;
    case GATHER: elements = root ? (long)call.part * world : 0; parts = world; break;
    case TRANSFER: elements = root || rank == world - 1 ? call.count : 0; break;
    case BARRIER: break;
    }
    long piece = elements / parts;
    for (int p = 0; p < parts && piece > 0; p++) {
        double expected = reduces ? reduced : parts > 1 ? p + 1 : call.kind == TRANSFER && root ? world : 1;
        for (int end = 0; end < 2; end++) {
            double found = get(result, point->dtype, p * piece + (end ? piece - 1 : 0));
            if (found != expected) snprintf(text, size, "\"part %d has %g, not %g\"", p, found, expected);
        }
    }
}

static int prepare(const struct point *point) {
    size_t width = 1;
    int kind = -1;
    for (int i = 0; i < (int)(sizeof KINDS / sizeof *KINDS); i++)
        if (!strcmp(KINDS[i], point->collective)) kind = i;
    if (kind < 0) return unsupported("collective", point->collective);
    if (!find_dtype(point->dtype, &call.type, &width)) return unsupported("element type", point->dtype);
    int reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    if (!find_op(point->op, &call.op) && reduces) return unsupported("operation", point->op);
    call.kind = kind;
    call.in_place = !strcmp(point->place, "in");
    call.count = (int)point->count;
    call.part = (int)(point->count / world);
    size_t whole = point->count * width, part = call.part * width, sent = whole, received = 0;
    int root = rank == 0;
    switch (call.kind) {
    case BARRIER: sent = 0; break;
    case ALL_REDUCE: received = call.in_place ? 0 : whole; break;
    case REDUCE: case BROADCAST: break;
    case ALL_GATHER: sent = part; received = whole; break;
    case REDUCE_SCATTER: received = part; break;
    case GATHER: sent = part; received = root ? whole : 0; break;
    case SCATTER: sent = root ? whole : 0; received = part; break;
    case ALL_TO_ALL: case TRANSFER: received = whole; break;
    }
    if (sent > touched_send) touched_send = sent;
    if (received > touched_recv) touched_recv = received;
    for (size_t i = 0; i < sent / width; i++) put(send_bytes, point->dtype, (long)i, rank + 1);
    memset(recv_bytes, 0, received);
    char found[128] = "null", text[192];
    if (!strcmp(point->check, "check")) {
        make_call();
        check_result(point, found, sizeof found);
    }
    /* Repeated sums must not change the values. */
    if (call.in_place) memset(send_bytes, 0, sent);
    reset_peak();
    snprintf(text, sizeof text, "{\"ready\": true, \"check\": %s}", found);
    reply(text);
    return 0;
}

static void measure(long lead, long calls) {
    struct rusage before, after;
    char text[256];
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < lead; i++) make_call();
    MPI_Barrier(MPI_COMM_WORLD);
    getrusage(RUSAGE_SELF, &before);
    int64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), begin = now_ns(CLOCK_MONOTONIC);
    for (long i = 0; i < calls; i++) make_call();
    int64_t elapsed = now_ns(CLOCK_MONOTONIC) - begin;
    cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    getrusage(RUSAGE_SELF, &after);
    size_t peak = resident_bytes("VmHWM"), known = base_bytes + touched_send + touched_recv;
    snprintf(text, sizeof text,
             "{\"elapsed_ns\": %lld, \"cpu_ns\": %lld, \"minor_faults\": %ld, \"major_faults\": %ld, \"beyond_bytes\": %zu}",
             (long long)elapsed, (long long)cpu, after.ru_minflt - before.ru_minflt, after.ru_majflt - before.ru_majflt,
             peak > known ? peak - known : 0);
    reply(text);
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    return connect(fd, (struct sockaddr *)&address, sizeof address) ? -1 : fd;
}

int main(int argc, char **argv) {
    base_bytes = resident_bytes("VmRSS");
    /* mpirun is the parent; no rank outlives it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(TIMEOUT_S);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    int fd = argc == 2 ? connect_to(argv[1]) : -1;
    if (fd < 0 || !(line_in = fdopen(fd, "r")) || !(line_out = fdopen(dup(fd), "w"))) {
        fprintf(stderr, "usage: openmpi_peer SOCKET\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char text[512], version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",")] = 0;
    snprintf(text, sizeof text, "{\"rank\": %d, \"about\": \"%s\"}", rank, version);
    reply(text);
    reply("{\"joined\": true}");
    while (fgets(text, sizeof text, line_in)) {
        struct point point;
        size_t size;
        long lead, calls;
        alarm(TIMEOUT_S);
        if (!strcmp(text, "end\n")) break;
        if (sscanf(text, "reserve %zu", &size) == 1) {
            /* Untouched memory does not count. */
            free(send_bytes);
            free(recv_bytes);
            send_bytes = malloc(size + 64);
            recv_bytes = malloc(size + 64);
            reply(send_bytes && recv_bytes ? "{\"reserved\": true}" : "{\"error\": \"not enough memory\"}");
        } else if (sscanf(text, "time %ld %ld", &lead, &calls) == 2) {
            measure(lead, calls);
        } else if (sscanf(text, "point %31s %15s %15s %ld %7s %7s", point.collective, point.dtype, point.op, &point.count,
                          point.place, point.check) == 6) {
            prepare(&point);
        } else {
            reply("{\"error\": \"unknown command\"}");
        }
    }
    MPI_Finalize();
    return 0;
}
