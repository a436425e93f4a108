//! What peers return with after the loss of a master counts only if a master has signed it, in a run with certificates.

use crate::certificates::{Files, admit, run, started, with_tls};
use ringfold::{AllReduce, Communicator, Master, MasterBuilder, Timing, TlsFiles};
use ringfold_fabric::connection::Connection;
use ringfold_fabric::dialer::{Credentials, DialTiming, dial_while};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::tls::issue::{Issued, new_ca};
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_proto::charter::{Charter, Electorate};
use ringfold_proto::claim::{CertificateChain, Claim, Signature};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{DialTarget, Identity, Role, Secret};
use ringfold_proto::id::{GroupId, OpId, PeerId, RunId, Seq, Tag};
use ringfold_proto::message::{
    Ballot, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Resume, ToMaster, ToPeer,
};
use ringfold_proto::reduce_op::ReduceOp;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// Scripted peers send no heartbeats.
fn patient() -> MasterBuilder {
    Master::builder().timing(Timing { silence_max: SOON, ..Timing::default() })
}

fn end(master: &Master) {
    master.interrupt();
    master.wait_for(SOON).expect("it ends").unwrap();
}

fn serve(builder: MasterBuilder, address: &str) -> Master {
    let master = builder.listen(address).build();
    let end = Instant::now() + SOON;
    while let Err(error) = master.run() {
        // Connections of the last master may still occupy the port.
        assert!(Instant::now() < end, "{error}");
        thread::sleep(Duration::from_millis(50));
    }
    master
}

/// Two addresses that nobody listens on.
fn free_addresses() -> Vec<String> {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// Lets the members reduce all the time while something else is done. Nothing may fail.
fn reduce_while(members: &[&Communicator], act: impl FnOnce(&dyn Fn(u32))) {
    let (is_over, counted) = (AtomicBool::new(false), AtomicU32::new(0));
    let world = members.len() as f32;
    thread::scope(|scope| {
        for (index, member) in members.iter().enumerate() {
            let (is_over, counted) = (&is_over, &counted);
            scope.spawn(move || {
                loop {
                    // All stop after the same one.
                    let mut data = vec![if is_over.load(Ordering::Relaxed) { 0.0 } else { 1.0 }; 64];
                    member.all_reduce(&mut data, AllReduce::sum()).expect("nothing fails");
                    if index == 0 {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    if data[0] < world {
                        return;
                    }
                }
            });
        }
        let await_more = |more: u32| {
            let (until, end) = (counted.load(Ordering::Relaxed) + more, Instant::now() + SOON);
            while counted.load(Ordering::Relaxed) < until {
                assert!(Instant::now() < end, "no progress");
                thread::sleep(Duration::from_millis(2));
            }
        };
        act(&await_more);
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn nothing_fails_when_a_master_with_certificates_is_restarted() {
    let (files, ca) = run("restart");
    let tls = files.identity(&ca, "ca", "m", Role::Master);
    let (mut master, address) = started(Master::builder().tls(tls.clone()));
    let alice = with_tls(&address, files.identity(&ca, "ca", "alice", Role::Peer)).unwrap();
    let bob = files.identity(&ca, "ca", "bob", Role::Peer);
    let bob = admit(&[&alice], || with_tls(&address, bob).unwrap());
    // More restarts than masters whose certificates a peer reports. Each master has a key of its own.
    reduce_while(&[&alice, &bob], |await_more| {
        for _ in 0..6 {
            await_more(5);
            end(&master);
            master = serve(Master::builder().tls(tls.clone()), &address);
            await_more(5);
        }
    });
    end(&master);
}

#[test]
fn nothing_fails_when_a_standby_with_certificates_takes_over() {
    let (files, ca) = run("standby");
    let list = free_addresses();
    let start = |index: usize| {
        let tls = files.identity(&ca, "ca", &format!("m{index}"), Role::Master);
        serve(Master::builder().masters(&list).this_master(index).tls(tls), &list[index])
    };
    let mut masters = [start(0), start(1)];
    let all = list.join(",");
    let alice = with_tls(&all, files.identity(&ca, "ca", "alice", Role::Peer)).unwrap();
    let bob = files.identity(&ca, "ca", "bob", Role::Peer);
    let bob = admit(&[&alice], || with_tls(&all, bob).unwrap());
    reduce_while(&[&alice, &bob], |await_more| {
        // The second one takes over, and then the first one again.
        for index in [0, 1] {
            await_more(5);
            end(&masters[index]);
            await_more(5);
            masters[index] = start(index);
            // Until the active one vouches for it: some beats of 0.5 s, on a busy machine too.
            thread::sleep(Duration::from_secs(4));
        }
    });
    masters.iter().for_each(end);
}

/// A peer that does what a test says, with keys of its own.
struct ScriptedPeer {
    security: Arc<Security>,
    poller: Arc<Poller>,
    connection: Connection,
    decoder: ControlDecoder<Numbered<ToPeer>>,
    sent: u64,
    received: u64,
}

impl ScriptedPeer {
    fn dial(security: &Arc<Security>, to: SocketAddr) -> Self {
        let poller = Arc::new(Poller::new().unwrap().with_security(security.clone()));
        let credentials = Credentials {
            identity: Identity::new(security.peer(), RunId(0)),
            target: DialTarget::master(),
            secret: Secret::token(""),
        };
        let wait = |_: &_| Ok::<_, std::io::Error>(Duration::from_millis(100));
        let dialed = dial_while(&[to], &credentials, DialTiming::of(&poller), &poller, wait).unwrap();
        let (connection, decoder) = (dialed.connection, ControlDecoder::default());
        Self { security: security.clone(), poller, connection, decoder, sent: 0, received: 0 }
    }

    fn send(&mut self, number: u64, message: ToMaster) {
        let message = Numbered { number, acknowledged: self.received, message };
        self.connection.send(&encode_control(&message).unwrap());
        self.connection.flush(&mut Vec::new()).unwrap();
    }

    fn send_numbered(&mut self, message: ToMaster) {
        self.sent += 1;
        self.send(self.sent, message);
    }

    fn next(&mut self) -> ToPeer {
        let (end, mut ready) = (Instant::now() + SOON, Readiness::default());
        loop {
            let decoder = &mut self.decoder;
            if let Some(Numbered { number, message, .. }) =
                self.connection.take(|input| decoder.next_message(input)).unwrap()
            {
                self.received = self.received.max(number);
                return message;
            }
            assert!(Instant::now() < end, "timed out waiting for a message");
            self.poller.wait(&mut ready, Duration::from_millis(100)).unwrap();
            self.connection.fill().unwrap();
        }
    }

    fn find<T>(&mut self, mut wanted: impl FnMut(ToPeer) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.next()) {
                return found;
            }
        }
    }

    /// Joins as the first peer. Returns what it has to report, with an operation that was committed.
    fn join(&mut self) -> Resume {
        let addresses = vec!["127.0.0.1:7".parse().unwrap()];
        let join = Join {
            group: GroupId(0),
            name: "mallory".into(),
            host: 1,
            site: 0,
            cores: Default::default(),
            addresses,
            relays: false,
        };
        self.send(0, ToMaster::Join(join.clone()));
        let (incarnation, seniority) = self.find(|message| match message {
            ToPeer::Registered { incarnation, seniority } => Some((incarnation, seniority)),
            _ => None,
        });
        let description = self.find(|message| match message {
            ToPeer::EpochProposed { description, .. } => Some(*description),
            _ => None,
        });
        let (attributes, signature) = self.find(|message| match message {
            ToPeer::EpochOpened { attributes, signature, .. } => Some((attributes, signature)),
            _ => None,
        });
        let op = OpId { epoch: description.id, tag: Tag(1), seq: Seq(0) };
        let descriptor = Descriptor::all_reduce(8, DType::F32, ReduceOp::Sum);
        self.send_numbered(ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest: None } });
        let decided = self.find(|message| match message {
            ToPeer::Decided { op: of, outcome, signature, .. } if of == op => Some((outcome, signature)),
            _ => None,
        });
        let ops = vec![OpRecord {
            tag: op.tag,
            seq: op.seq,
            descriptor: None,
            progress: OpProgress::Decided(decided.0),
            signature: decided.1,
        }];
        Resume {
            join,
            incarnation,
            previous: None,
            received: self.received,
            seniority,
            epochs: vec![EpochRecord { description, opened: true, signature, ops }],
            rounds: Default::default(),
            last_pending: false,
            synced: None,
            attributes,
            voter: Default::default(),
            charter_signature: None,
            chains: self.connection.peer_chain().map(|(_, chain)| chain).into_iter().collect(),
            held_bytes: 0,
        }
    }

    fn sign(&self, claim: Claim<'_>) -> Option<Box<Signature>> {
        sign(&self.security, claim)
    }
}

fn sign(security: &Security, claim: Claim<'_>) -> Option<Box<Signature>> {
    let bytes = security.sign(&claim.signed_bytes()).unwrap();
    Some(Box::new(Signature { signer: security.peer(), bytes }))
}

/// How a restarted master takes a report.
#[derive(PartialEq, Eq, Debug)]
enum Answer {
    /// As that of a new peer.
    Joined,
    /// As that of a member, with these operations decided.
    Restored(Vec<OpId>),
}

struct Case {
    files: Files,
    ca: Issued,
    master: TlsFiles,
    mallory: Arc<Security>,
}

impl Case {
    fn new(name: &str) -> Self {
        let (files, ca) = run(name);
        let master = files.identity(&ca, "ca", "m", Role::Master);
        let mallory = files.identity(&ca, "ca", "mallory", Role::Peer);
        let mallory = Arc::new(Security::with_certificates(mallory).unwrap());
        Self { files, ca, master, mallory }
    }

    /// A master ends, and its successor gets this report of its only member.
    fn resume(&self, alter: impl FnOnce(&ScriptedPeer, &mut Resume)) -> Answer {
        let (first, address) = started(patient().tls(self.master.clone()));
        let mut peer = ScriptedPeer::dial(&self.mallory, address.parse().unwrap());
        let mut resume = peer.join();
        alter(&peer, &mut resume);
        drop(peer);
        end(&first);
        let master = serve(patient().tls(self.master.clone()), &address);
        let mut peer = ScriptedPeer::dial(&self.mallory, address.parse().unwrap());
        peer.send(0, ToMaster::Resume(Box::new(resume)));
        let mut decided = Vec::new();
        let mut is_restored = false;
        let answer = peer.find(|message| match message {
            ToPeer::Registered { .. } => Some(Answer::Joined),
            ToPeer::Restored { .. } => {
                is_restored = true;
                None
            }
            ToPeer::Decided { op, .. } => {
                decided.push(op);
                None
            }
            ToPeer::EpochOpened { .. } if is_restored => Some(Answer::Restored(decided.clone())),
            ToPeer::Removed { reason } => panic!("{reason:?}"),
            _ => None,
        });
        end(&master);
        answer
    }
}

/// An operation that was never decided.
fn invented(resume: &Resume) -> (OpId, OpRecord) {
    let op = OpId { epoch: resume.epochs[0].description.id, tag: Tag(5), seq: Seq(3) };
    let progress = OpProgress::Decided(Outcome::COMMITTED);
    (op, OpRecord { tag: op.tag, seq: op.seq, descriptor: None, progress, signature: None })
}

#[test]
fn an_honest_report_counts_and_invented_outcomes_do_not() {
    let case = Case::new("outcomes");
    let Answer::Restored(decided) = case.resume(|_, _| {}) else { panic!("not restored") };
    assert!(matches!(decided[..], [OpId { tag: Tag(1), seq: Seq(0), .. }]), "{decided:?}");
    // Without a signature, with that of another operation, with its own, and with a changed outcome.
    for forgery in 0..4 {
        let answer = case.resume(|peer, resume| {
            let (op, mut record) = invented(resume);
            record.signature = match forgery {
                1 => resume.epochs[0].ops[0].signature.clone(),
                2 => peer.sign(Claim::Decided(op, &Outcome::COMMITTED)),
                _ => None,
            };
            resume.chains.push(peer.security.chain());
            if forgery == 3 {
                record = resume.epochs[0].ops.pop().unwrap();
                record.progress =
                    OpProgress::Decided(Outcome::Aborted(ringfold_proto::cause::Cause::EpochEnded));
            }
            resume.epochs[0].ops.push(record);
        });
        let Answer::Restored(decided) = answer else { panic!("not restored") };
        // What a master has signed still counts.
        assert!(decided.iter().all(|op| op.tag == Tag(1)), "{forgery}: {decided:?}");
        assert_eq!(decided.len(), usize::from(forgery != 3), "{forgery}");
    }
}

#[test]
fn an_invented_epoch_does_not_count_whoever_signs_it() {
    let case = Case::new("epochs");
    let other = new_ca("run").unwrap();
    case.files.write("other", &other.certificate);
    let stranger = case.files.identity(&other, "other", "stranger", Role::Master);
    let stranger = Security::with_certificates(stranger).unwrap();
    for forgery in 0..4 {
        let answer = case.resume(|peer, resume| {
            let record = &mut resume.epochs[0];
            record.description.id.counter += 7;
            record.description.key = [7; 32];
            record.ops.clear();
            let (signer, chain): (&Security, CertificateChain) = match forgery {
                // The signature of another epoch.
                0 => return,
                1 => {
                    record.signature = None;
                    return;
                }
                // Its own certificate, which has the role peer.
                2 => (&peer.security, peer.security.chain()),
                // That of a master of another CA.
                _ => (&stranger, stranger.chain()),
            };
            record.signature = sign(signer, Claim::Opened(&record.description));
            resume.chains.push(chain);
        });
        assert_eq!(answer, Answer::Joined, "{forgery}");
    }
    // Who has the certificate of a master may say so.
    let rogue = case.files.identity(&case.ca, "ca", "rogue", Role::Master);
    let rogue = Security::with_certificates(rogue).unwrap();
    let answer = case.resume(|_, resume| {
        resume.epochs[0].description.key = [7; 32];
        resume.epochs[0].ops.clear();
        resume.epochs[0].signature = sign(&rogue, Claim::Opened(&resume.epochs[0].description));
        resume.chains.push(rogue.chain());
    });
    assert_eq!(answer, Answer::Restored(Vec::new()));
}

#[test]
fn the_claims_of_a_revoked_master_do_not_count() {
    let mut case = Case::new("revoked-master");
    case.files.write("revoked", "# nobody\n");
    let next = case.files.identity(&case.ca, "ca", "next", Role::Master);
    let (first, address) = started(patient().tls(case.master.clone()));
    let mut peer = ScriptedPeer::dial(&case.mallory, address.parse().unwrap());
    let resume = peer.join();
    drop(peer);
    end(&first);
    case.files.write("revoked", "m\n");
    case.master = next.revoked(case.files.path("revoked"));
    let _master = serve(patient().tls(case.master.clone()), &address);
    let mut peer = ScriptedPeer::dial(&case.mallory, address.parse().unwrap());
    peer.send(0, ToMaster::Resume(Box::new(resume)));
    let is_joined = peer.find(|message| match message {
        ToPeer::Registered { .. } => Some(true),
        ToPeer::Restoring { .. } => Some(false),
        _ => None,
    });
    assert!(is_joined);
}

/// Returns with an invented charter to one of two masters, which leads. Returns whether that master passes it on.
fn is_charter_adopted(name: &str, has_certificates: bool) -> bool {
    let case = Case::new(name);
    let list = free_addresses();
    let masters: Vec<_> = (0..2)
        .map(|index| {
            let builder = patient().masters(&list).this_master(index);
            let tls = || case.files.identity(&case.ca, "ca", &format!("m{index}"), Role::Master);
            serve(if has_certificates { builder.tls(tls()) } else { builder }, &list[index])
        })
        .collect();
    let security = match has_certificates {
        true => case.mallory.clone(),
        false => Arc::new(Security::new(Encryption::OffLoopback).unwrap()),
    };
    let mut peer = ScriptedPeer::dial(&security, list[0].parse().unwrap());
    let mut resume = peer.join();
    let next_charter = |peer: &mut ScriptedPeer| {
        peer.find(|message| match message {
            ToPeer::Lead { charter: Some(charter), .. } => Some(*charter),
            _ => None,
        })
    };
    let charter = next_charter(&mut peer);
    let electorate = Electorate::new([security.peer(), PeerId(7)], 0);
    let forged = Charter { version: charter.version + 1000, electorates: vec![electorate], ..charter };
    if has_certificates {
        resume.charter_signature = peer.sign(Claim::Charter(&forged));
        resume.chains.push(security.chain());
    }
    (resume.voter.promised, resume.voter.charter) = (charter.term, forged.clone());
    resume.received = peer.received;
    drop(peer);
    let mut peer = ScriptedPeer::dial(&security, list[0].parse().unwrap());
    peer.send(0, ToMaster::Resume(Box::new(resume)));
    peer.find(|message| matches!(message, ToPeer::Rebound { .. }).then_some(()));
    next_charter(&mut peer);
    let last = next_charter(&mut peer);
    masters.iter().for_each(end);
    last.version >= forged.version
}

#[test]
fn an_invented_charter_does_not_count() {
    assert!(!is_charter_adopted("charter", true));
    // Without certificates every peer could be a master.
    assert!(is_charter_adopted("charter-plain", false));
}
