//! The master as a process: start, end, addresses.

use ringfold_lab::programs::MasterProcess;
use ringfold_lab::{Network, skip};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const MASTER: &str = env!("CARGO_BIN_EXE_lab-master");
const SOON: Duration = Duration::from_secs(10);

fn start(listen: &[&str]) -> MasterProcess {
    let mut command = Command::new(MASTER);
    for address in listen {
        command.args(["--listen", address]);
    }
    MasterProcess::start(command).expect("a master")
}

#[test]
fn a_terminated_master_ends_cleanly_and_frees_its_port() {
    let mut master = start(&["127.0.0.1:0"]);
    let address = master.address();
    for _ in 0..3 {
        let stranger = TcpStream::connect(address).expect("it listens");
        master.terminate().expect("terminate");
        assert_eq!(master.wait_exit(SOON).expect("exit").code(), Some(0));
        master.wait_for_line("ended", SOON).expect("a clean end");
        drop(stranger);
        master = start(&[&address.to_string()]);
        assert_eq!(master.address(), address);
    }
    master.kill9().expect("kill");
    drop(TcpListener::bind(address).expect("the port is free after kill -9"));
    assert_eq!(start(&[&address.to_string()]).address(), address);
}

#[test]
fn a_master_listens_on_several_addresses_and_ends_with_its_test() {
    let mut master = start(&["127.0.0.1:0", "127.0.0.2:0"]);
    assert_eq!(master.addresses().len(), 2);
    for address in master.addresses() {
        TcpStream::connect(address).expect("it listens");
    }
    master.close_stdin();
    assert_eq!(master.wait_exit(SOON).expect("exit").code(), Some(0));
}

#[test]
fn a_master_that_cannot_listen_reports_the_address() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let mut command = Command::new(MASTER);
    command.args(["--listen", &address.to_string()]);
    let error = MasterProcess::start(command).expect_err("the port is taken").to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}

#[test]
fn a_master_listens_on_a_host_of_a_network() {
    if !skip::check("a_master_listens_on_a_host_of_a_network", Network::available()) {
        return;
    }
    let network = Network::new(2).expect("a network");
    let mut command = network.host(0).command(MASTER);
    for address in network.host(0).addresses() {
        command.args(["--listen", &SocketAddr::new(address, 0).to_string()]);
    }
    let mut master = MasterProcess::start(command).expect("a master");
    assert_eq!(master.addresses().len(), network.host(0).addresses().count());
    master.terminate().expect("signals reach it");
    assert!(master.wait_exit(SOON).expect("exit").success());
}
