//! Tests of the functions of pccl.h.

use crate::compiler::{self, Language, Source};
use crate::running::Running;
use ringfold_fabric::tls::issue::{issue, new_ca};
use ringfold_fabric::tls::{PeerIdentity, Role};
use std::time::Duration;

fn run(source: &Source) {
    Running::start(&source.compile(), &[]).succeed(Duration::from_secs(120));
}

fn scenario(name: &str) {
    let program = Source::program("collectives.cpp", Language::Cpp17).compile();
    Running::start(&program, &[name]).succeed(Duration::from_secs(120));
}

#[test]
fn every_misuse_returns_its_result() {
    run(&Source::program("misuse.c", Language::C99));
}

#[test]
fn the_static_library_does_the_same() {
    run(&Source::program("misuse.c", Language::C99).linked_statically());
}

#[test]
fn masters_can_reuse_one_port() {
    run(&Source::program("masters.c", Language::C99));
}

#[test]
fn only_peers_with_the_token_are_accepted() {
    run(&Source::program("tokens.c", Language::C99));
}

#[test]
fn settings_hold_for_what_is_created_from_now_on() {
    run(&Source::program("options.c", Language::C99));
}

#[test]
fn only_peers_with_a_certificate_are_accepted() {
    let dir = compiler::scratch().join(format!("certificates-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    let (ca, other) = (new_ca("run").unwrap(), new_ca("other").unwrap());
    write("ca.pem", &ca.certificate);
    write("other-ca.pem", &other.certificate);
    for (ca, name, role) in
        [(&ca, "master", Role::Master), (&ca, "alice", Role::Peer), (&other, "stranger", Role::Peer)]
    {
        let issued = issue(ca, &PeerIdentity { name: name.into(), role }, 1).unwrap();
        write(&format!("{name}.pem"), &issued.certificate);
        write(&format!("{name}.key"), &issued.key);
    }
    let program = Source::program("certificates.c", Language::C99).compile();
    Running::start(&program, &[dir.to_str().unwrap()]).succeed(Duration::from_secs(120));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn three_peers_reduce_in_place_and_out_of_place() {
    scenario("sums");
}

#[test]
fn every_type_and_operation_is_reduced() {
    scenario("every_type_and_operation");
}

#[test]
fn constant_data_is_exact_when_quantised() {
    scenario("quantised");
}

#[test]
fn error_feedback_is_a_setting_and_traffic_is_counted() {
    scenario("error_feedback_and_traffic");
}

#[test]
fn tags_may_be_launched_and_awaited_in_any_order() {
    scenario("tags_in_any_order");
}

#[test]
fn peers_may_differ_in_how_many_they_keep_in_flight() {
    scenario("several_with_retry");
}

#[test]
fn counts_that_differ_fail_for_all_and_change_nothing() {
    scenario("differing_counts_fail_for_both");
}

#[test]
fn shared_state_is_the_same_for_all_after_a_sync() {
    scenario("shared_state");
}

#[test]
fn groups_reduce_among_themselves() {
    scenario("groups");
}

#[test]
fn buffers_are_restored_and_survivors_continue_when_a_peer_leaves() {
    scenario("a_peer_that_leaves");
}

#[test]
fn world_sizes_are_current_after_a_failure_unknown_to_the_master() {
    scenario("a_peer_that_leaves_at_once");
}

#[test]
fn a_call_ends_when_its_communicator_is_destroyed() {
    scenario("calls_end_when_their_communicator_is_destroyed");
}

/// Takes as long as a peer searches for a lost master.
#[test]
fn a_peer_gets_an_error_when_its_master_is_lost() {
    let program = Source::program("collectives.cpp", Language::Cpp17).compile();
    Running::start(&program, &["a_peer_without_a_master"]).succeed(Duration::from_secs(600));
}
