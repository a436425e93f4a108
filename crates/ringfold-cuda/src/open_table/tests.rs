use super::*;
use std::sync::mpsc::channel;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn open(table: &OpenTable<u8>, key: u8, address: u64) -> u64 {
    table.open::<()>(&key, || Ok(address)).unwrap()
}

#[test]
fn a_resource_is_opened_once_and_closed_with_its_last_reference() {
    let table = OpenTable::new();
    assert_eq!((open(&table, 1, 10), open(&table, 1, 11)), (10, 10));
    table.close(&1, |_| panic!("it is in use"));
    let mut closed = 0;
    table.close(&1, |address| closed = address);
    assert_eq!((closed, open(&table, 1, 12)), (10, 12));
    assert_eq!(table.open(&2, || Err("no")), Err("no"));
    assert_eq!(table.entries.lock().len(), 1);
}

#[test]
fn a_slow_close_delays_only_openers_of_the_same_resource() {
    let table = OpenTable::new();
    assert_eq!(open(&table, 1, 10), 10);
    let (begun, begins) = channel();
    let (go, gate) = channel::<()>();
    std::thread::scope(|scope| {
        let table = &table;
        scope.spawn(move || {
            table.close(&1, |_| {
                begun.send(()).unwrap();
                let _ = gate.recv_timeout(LONG);
            });
        });
        begins.recv_timeout(LONG).unwrap();
        assert_eq!(open(table, 2, 20), 20);
        let (sender, receiver) = channel();
        scope.spawn(move || sender.send(open(table, 1, 11)).unwrap());
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        go.send(()).unwrap();
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), 11, "it was closed, and is opened again");
    });
    table.close(&1, |_| {});
    table.close(&2, |_| {});
    assert!(table.entries.lock().is_empty());
}
