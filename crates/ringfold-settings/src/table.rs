//! All settings.
//!
//! The comment of each is its text in `docs/settings.md` and `ringfold config show`.

use crate::{Kind, Setting, User};
use core::time::Duration;

const MASTER: &[User] = &[User::Master];
const PEER: &[User] = &[User::Peer];
const GROUP: &[User] = &[User::Group];

const RUN: &[User] = &[User::Master, User::Peer];
const JOINED: &[User] = &[User::Master, User::Peer, User::Relay];
const LISTENING: &[User] = &[User::Master, User::Relay];
const LINKED: &[User] = &[User::Peer, User::Group];
const WAITING: &[User] = &[User::Master, User::Peer, User::Group];
const RELAYING: &[User] = &[User::Peer, User::Relay];
const TUNED: &[User] = &[User::Master, User::Group];
const ALL_USERS: &[User] = &crate::USERS;

const LONG: Duration = Duration::from_secs(30 * 86_400);

const fn millis(min: u64, max: Duration) -> Kind {
    Kind::Time(Duration::from_millis(min), max)
}

const fn within(min_ms: u64, max_s: u64) -> Kind {
    millis(min_ms, Duration::from_secs(max_s))
}

macro_rules! first {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! table {
    ($($(#[doc = $about:literal])+ $id:ident $name:literal for $users:ident: $kind:expr, $default:literal
        $(, flag $flag:literal)? $(, old $old:literal)?;)*) => {
        $(
            $(#[doc = $about])+
            pub static $id: Setting = Setting {
                name: $name,
                variable: concat!("RINGFOLD_", stringify!($id)),
                old_variable: first!($($old)?),
                flag: first!($($flag)?),
                kind: $kind,
                default: $default,
                users: $users,
                about: concat!($($about),+),
            };
        )*

        /// All settings, in the order of the reference.
        pub static ALL: &[&Setting] = &[$(&$id),*];
    };
}

table! {
    /// The interval of heartbeats between peers and master.
    HEARTBEAT "heartbeat" for RUN: within(10, 3600), "500ms";
    /// A peer is evicted if neither the master nor a neighbour received a byte from it for this long.
    SILENCE_MAX "silence_max" for RUN: within(50, 86_400), "2.5s";
    /// How long a peer whose connection to the master ended may take to resume if no neighbour can tell whether it lives.
    SUSPECT_MAX "suspect_max" for MASTER: within(0, 86_400), "1s";
    /// A peer treats its master as lost after this long without a byte.
    MASTER_SILENCE_MAX "master_silence_max" for PEER: within(50, 86_400), "6s";
    /// How long a peer dials a lost master before it gives up.
    MASTER_RETURN_MAX "master_return_max" for RUN: millis(0, LONG), "60s";
    /// The pause between two attempts to dial the master.
    REDIAL "redial" for PEER: within(10, 3600), "200ms";
    /// How long a restarted master waits for members after the first has returned, and a master for a member whose connection ended while its neighbours hear it.
    RESTORE_GRACE "restore_grace" for MASTER: millis(0, LONG), "8s";
    /// How long after its start a master accepts members of an earlier master.
    RESTORE_WINDOW "restore_window" for MASTER: millis(0, LONG), "120s";
    /// How long members may take to connect when an epoch is proposed.
    ESTABLISH_MAX "establish_max" for RUN: within(100, 86_400), "20s";
    /// The timeout of votes and collectives of an elastic run that have none of their own.
    WAIT_MAX "wait_max" for RUN: millis(1000, LONG), "30min";
    /// How long after the deadline of a call a peer waits for the master's answer before it treats the master as lost.
    ANSWER_GRACE "answer_grace" for RUN: millis(100, LONG), "5min";
    /// An operation that takes longer than this is announced to the master.
    ANNOUNCE_AFTER "announce_after" for PEER: within(0, 3600), "1ms";
    /// How long one bandwidth probe may take.
    PROBE_MAX "probe_max" for MASTER: within(100, 3600), "7s";
    /// How long the master looks for a ring.
    TOUR_MAX "tour_max" for MASTER: within(10, 3600), "3s";
    /// How often new measurements of the network are compared with those that plans were chosen for.
    APPRAISE_EVERY "appraise_every" for MASTER: within(10, 86_400), "1s";
    /// How long a pair of peers whose link failed is not used.
    EDGE_DISTRUST "edge_distrust" for MASTER: millis(0, LONG), "60s";
    /// How long a broken link may take to reconnect before it is reported.
    RELINK_MAX "relink_max" for PEER: within(0, 86_400), "5s";
    /// Logs warn about calls that wait longer than this, and again after twice the time, and so on. A peer whose shared state was rejected and that makes no call for this long is evicted if others wait for it.
    WARN_AFTER "warn_after" for WAITING: within(10, 86_400), "5s";
    /// How long two peers may take to make a link before the other end is reported as unreachable.
    LINK_MAX "link_max" for PEER: within(100, 3600), "4s";
    /// A link that owes data is reported after this long without any. At least `silence_max`.
    STALL_AFTER "stall_after" for LINKED: within(50, 86_400), "4s";
    /// How long the host at the other end of a connection may acknowledge nothing before the connection counts as lost.
    UNREACHABLE_AFTER "unreachable_after" for ALL_USERS: within(3000, 86_400), "15s", flag "--unreachable-after";
    /// How long a TCP connection to one address may take to be made.
    CONNECT_MAX "connect_max" for ALL_USERS: within(10, 3600), "3s";
    /// How long a handshake may take, from the first byte to the last.
    HANDSHAKE_MAX "handshake_max" for ALL_USERS: within(10, 3600), "5s";
    /// How long `connect` of a peer waits to be admitted. Without it: `wait_max`.
    CONNECT_TIMEOUT "connect_timeout" for PEER: millis(1, LONG), "";
    /// How long the ranks of a group may take to find each other and connect.
    BOOTSTRAP_TIMEOUT "bootstrap_timeout" for GROUP: millis(1, LONG), "5min";
    /// The timeout of an operation of a group, after which the group fails.
    OPERATION_TIMEOUT "operation_timeout" for GROUP: millis(1, LONG), "10min";

    /// The addresses to listen on. Without it: all addresses, port 48148 (master) or 48149 (relay).
    LISTEN "listen" for LISTENING: Kind::Addresses, "", flag "--listen";
    /// The ports of which a peer or rank listens on the first free one.
    LISTEN_PORTS "listen_ports" for LINKED: Kind::Ports, "0";
    /// The local address to listen on. Without it: all.
    BIND "bind" for LINKED: Kind::Ip, "";
    /// The addresses at which others dial this process, if not those that the master or rank 0 sees; without a port, the one that it listens on.
    ADVERTISE "advertise" for LINKED: Kind::Addresses, "";
    /// All masters of the run, the same list in the same order for all masters and peers. Without it: this one alone.
    MASTERS "masters" for RUN: Kind::Addresses, "", flag "--masters";
    /// The position of this master in the list, from 1. Without it: the one whose address it listens on.
    THIS_MASTER "this_master" for MASTER: Kind::Count(1, 9), "", flag "--this-master";
    /// A lease in etcd that decides which master is active: `etcd://HOST:PORT/PATH`.
    LEASE "lease" for MASTER: Kind::Text, "", flag "--lease";
    /// The relays for peers that cannot reach each other, up to 4.
    RELAYS "relays" for MASTER: Kind::Addresses, "", flag "--relay";
    /// The address of the master's HTTP server, with metrics, health and the web page: `HOST:PORT`, `HOST` or `PORT` (at 127.0.0.1). Without it there is none.
    HTTP "http" for MASTER: Kind::Text, "", flag "--http";
    /// The file with the token that is needed to read over HTTP. Without it everybody who reaches the port may read.
    HTTP_TOKEN_FILE "http_token_file" for MASTER: Kind::Path, "", flag "--http-token-file";
    /// The names by which browsers and monitoring reach the master's HTTP server. Addresses, `localhost` and the name in `http` are always answered, requests to other names are not.
    HTTP_HOSTS "http_hosts" for MASTER: Kind::Addresses, "";
    /// How the ranks of a group find each other: `HOST:PORT`, or `file:` and a path. Without it: `MASTER_ADDR` and `MASTER_PORT`.
    BOOTSTRAP "bootstrap" for GROUP: Kind::Text, "";
    /// A text: processes with different texts count as processes of different hosts.
    HOST "host" for LINKED: Kind::Text, "";
    /// The site of a peer: peers of one site are close to each other.
    SITE "site" for PEER: Kind::Count(0, u32::MAX as u64), "0";

    /// The join token. `join_token_file` is safer: it can be replaced while processes run.
    JOIN_TOKEN "join_token" for JOINED: Kind::Secret, "", old "PCCL_JOIN_TOKEN";
    /// The file with the join token; several lines are several tokens. `join_token` from the same source has priority.
    JOIN_TOKEN_FILE "join_token_file" for JOINED: Kind::Path, "", flag "--token-file", old "PCCL_JOIN_TOKEN_FILE";
    /// The file with the token of operators, who may evict peers and drain the run.
    ADMIN_TOKEN_FILE "admin_token_file" for RUN: Kind::Path, "", flag "--admin-token-file";
    /// The file with the CA of the run.
    TLS_CA "tls_ca" for ALL_USERS: Kind::Path, "", flag "--tls-ca";
    /// The file with the certificate of this process.
    TLS_CERT "tls_cert" for ALL_USERS: Kind::Path, "", flag "--tls-cert";
    /// The file with its private key.
    TLS_KEY "tls_key" for ALL_USERS: Kind::Path, "", flag "--tls-key";
    /// The file with revoked certificates.
    TLS_REVOKED "tls_revoked" for ALL_USERS: Kind::Path, "", flag "--tls-revoked";
    /// Connections are not encrypted, for measurements. All processes of a run must agree.
    INSECURE "insecure" for ALL_USERS: Kind::Bool, "false", flag "--insecure";
    /// Refuses to listen or dial off loopback without a token or certificates.
    REQUIRE_AUTH "require_auth" for JOINED: Kind::Bool, "false";

    /// Peers of a run.
    PEERS_MAX "peers_max" for MASTER: Kind::Count(1, 1024), "1024";
    /// Connections that may be in their handshake at once, at one listener. At most a quarter of the process's file descriptors, and at least 64, are used.
    HANDSHAKES_MAX "handshakes_max" for ALL_USERS: Kind::Count(64, 1024), "1024";
    /// TCP connections per pair on different hosts.
    STREAMS "streams" for LINKED: Kind::Count(1, 64), "4";
    /// Bytes of unused receive memory that are kept.
    SPARE_SLOT_BYTES "spare_slot_bytes" for LINKED: Kind::Bytes(0, 1 << 40), "64MiB";
    /// Bytes of backup memory that a group with `restore_on_failure` keeps for the next operation.
    SPARE_BACKUP_BYTES "spare_backup_bytes" for GROUP: Kind::Bytes(0, 1 << 40), "256MiB";
    /// Pairs of peers that a relay, or a peer that volunteers, joins at the same time.
    RELAY_PAIRS_MAX "relay_pairs_max" for RELAYING: Kind::Count(1, 65_536), "1024";
    /// Connections that wait at a relay for the other peer.
    RELAY_WAITING_MAX "relay_waiting_max" for RELAYING: Kind::Count(1, 65_536), "4096";
    /// A cap on what a relay, or a peer that volunteers, copies per second for each pair, in both directions together. `max_upload` and `max_download` are its caps in total.
    RELAY_PAIR_RATE "relay_pair_rate" for RELAYING: Kind::Bandwidth, "none";
    /// A cap on what is sent to other hosts. From a variable or file it is one cap for the whole process.
    MAX_UPLOAD "max_upload" for ALL_USERS: Kind::Bandwidth, "none";
    /// The same for what is received.
    MAX_DOWNLOAD "max_download" for ALL_USERS: Kind::Bandwidth, "none";

    /// Long links use QUIC over UDP.
    QUIC "quic" for LINKED: Kind::Bool, "true";
    /// Processes of one host share memory.
    SHARED_MEMORY "shared_memory" for LINKED: Kind::Bool, "true";
    /// Ranks of a group on one host copy large data directly from each other's memory, if the kernel permits it for all of them.
    DIRECT_COPY "direct_copy" for GROUP: Kind::Bool, "true";
    /// Threads that reduce large tensors in shared buffers, for each rank. More than one pays where a host has several cores per rank.
    FOLD_THREADS "fold_threads" for GROUP: Kind::Count(1, 64), "1";
    /// Sums have the same bits whatever the plan, the transport, the chunks and the number of ranks per host. Must be the same on all peers or ranks.
    REPRODUCIBLE "reproducible" for LINKED: Kind::Bool, "false";
    /// All-reduces that are not quantised continue when a peer is lost, with what the others have exchanged. For large tensors on slow links. Must be the same on all peers.
    RESUME "resume" for PEER: Kind::Bool, "false";
    /// What is checked: checksums of payloads, digests of the results of all-reduces, or both. Must be the same on all peers or ranks. A group with it uses no shared-memory board and no kernels of CUDA devices.
    INTEGRITY "integrity" for LINKED: Kind::Choice(&["none", "payloads", "results", "all"]), "none";
    /// This peer relays the traffic of peers that cannot reach each other.
    VOLUNTEER_RELAY "volunteer_relay" for PEER: Kind::Bool, "false";
    /// A peer examines its host and the way to the master before it connects, as `ringfold doctor --quick` does, and fails with what it has found.
    PREFLIGHT "preflight" for PEER: Kind::Bool, "false";
    /// Which state a run continues from when all peers that held it were lost.
    RECOVER "recover" for MASTER: Kind::Choice(&["newest", "majority", "manual"]), "newest", flag "--recover";
    /// How long the first peers that come back after such a loss wait for the others.
    RECOVER_AFTER "recover_after" for MASTER: millis(0, LONG), "30s", flag "--recover-after";
    /// How many peers must be back for the run to continue earlier, and must hold a revision for it to win over older ones. Without it: all lost peers must be back, and one holder is enough.
    RECOVER_MIN "recover_min" for MASTER: Kind::Count(1, 1024), "", flag "--recover-min";
    /// The file with the tuning of plans, written by `ringfold bench --tune`. A group uses that of rank 0.
    TUNING "tuning" for TUNED: Kind::Path, "", flag "--tuning";
    /// Up to which size CUDA tensors are sent in packets; the least of all ranks counts. Without it: by `cuda_tuning`, or by a table.
    CUDA_PACKET_BYTES "cuda_packet_bytes" for GROUP: Kind::Bytes(0, 1 << 40), "";
    /// The file of `ringfold bench --cuda --tune`.
    CUDA_TUNING "cuda_tuning" for GROUP: Kind::Path, "";
    /// The library NVRTC, or its folder. Without it, it is searched for.
    NVRTC "nvrtc" for LINKED: Kind::Path, "";
    /// The folder of programs and Python environments of `ringfold bench`. Without it: `~/.cache/ringfold`.
    CACHE "cache" for ALL_USERS: Kind::Path, "";

    /// The log level: trace, debug, info, warn, error or off; or a filter such as `warn,ringfold=debug`.
    LOG "log" for ALL_USERS: Kind::Text, "warn", flag "--log", old "PCCL_LOG_LEVEL";
    /// The format of log lines: `json` is one object per line, with stable names.
    LOG_FORMAT "log_format" for ALL_USERS: Kind::Choice(&["text", "json"]), "text", flag "--log-format";
    /// The folder of flight recorders: a file for each process with its last events, which `ringfold replay` reads after a crash. Without it, nothing is recorded.
    FLIGHT_DIR "flight_dir" for ALL_USERS: Kind::Path, "", flag "--flight-dir";
    /// The size of a flight recorder. The first master, peer, group or relay of a process opens it.
    FLIGHT_BYTES "flight_bytes" for ALL_USERS: Kind::Bytes(1 << 16, 1 << 30), "4MiB";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_match_their_variables_and_defaults_are_valid() {
        let names: BTreeSet<_> = ALL.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), ALL.len());
        for setting in ALL {
            assert_eq!(setting.variable, format!("RINGFOLD_{}", setting.name.to_uppercase()));
            assert!(setting.default.is_empty() || setting.kind.check(setting.default).is_ok(), "{setting:?}");
            assert!(setting.about().ends_with('.') && !setting.about().contains('|'), "{setting:?}");
            assert!(!setting.users.is_empty() && User::find(setting.name).is_none());
        }
    }

    #[test]
    fn the_reference_in_the_documentation_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
        let (begin, end) = ("<!-- begin of the table -->\n", "<!-- end of the table -->");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(begin).unwrap();
        let (table, after) = rest.split_once(end).unwrap();
        let expected = crate::reference();
        if std::env::var_os("RINGFOLD_BLESS").is_some_and(|set| set == "1") {
            std::fs::write(path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        } else {
            assert!(
                table == expected,
                "docs/settings.md is out of date: run this test with RINGFOLD_BLESS=1"
            );
        }
    }
}
