//! Groups of fixed ranks whose ranks are processes that are killed, stopped or late, or that get hostile connections.

mod bootstrap;
mod cleanup;
mod commands;
mod deaths;
mod direct_copy;
mod hostile;
mod leaving;
mod rank_process;
mod restoring;
mod shared_buffers;
mod waits;

/// Not a test by itself: the other tests run it in the processes of their ranks.
#[test]
fn rank_process_main() {
    if std::env::var_os(rank_process::IS_RANK).is_some() {
        commands::run();
    }
}
