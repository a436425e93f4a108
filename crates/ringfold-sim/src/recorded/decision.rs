//! The decisions of masters, from recorded events and from those of simulated masters.

use super::{LABEL_BYTES_MAX, PEERS_MAX, WORLD_MAX};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How a peer departed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// By itself.
    Left,
    /// The master removed it although it may live.
    Evicted,
    /// It died, was silent, or did not return.
    Lost,
}

/// A decision of a master about members or operations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum Decision {
    /// Not compared.
    Registered {
        peer: String,
    },
    /// Not compared.
    Reconnected {
        peer: String,
    },
    Departed {
        peer: String,
        how: Loss,
    },
    Accepted {
        peer: String,
        group: u32,
    },
    /// Members are sorted.
    EpochOpened {
        group: u32,
        members: Vec<String>,
    },
    /// After the restart of a master.
    EpochKept {
        group: u32,
        members: Vec<String>,
    },
    Committed {
        group: u32,
        count: u64,
    },
    Aborted {
        group: u32,
        tag: u64,
        failure: String,
    },
    StateElected {
        group: u32,
        revision: u64,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered { peer } => write!(f, "{peer} is registered"),
            Self::Reconnected { peer } => write!(f, "{peer} reconnected"),
            Self::Departed { peer, how: Loss::Left } => write!(f, "{peer} left"),
            Self::Departed { peer, how: Loss::Evicted } => write!(f, "{peer} was evicted"),
            Self::Departed { peer, how: Loss::Lost } => write!(f, "{peer} was lost"),
            Self::Accepted { peer, group } => write!(f, "{peer} is accepted into group {group}"),
            Self::EpochOpened { group, members } => {
                write!(f, "group {group}: an epoch of {} opens", members.join(", "))
            }
            Self::EpochKept { group, members } => {
                write!(f, "group {group}: the epoch of {} is kept", members.join(", "))
            }
            Self::Committed { group, count } => write!(f, "group {group}: {count} operations are committed"),
            Self::Aborted { group, tag, failure } => {
                write!(f, "group {group}: an operation of tag {tag} is aborted: {failure}")
            }
            Self::StateElected { group, revision } => {
                write!(f, "group {group}: revision {revision} is elected")
            }
        }
    }
}

/// The names of peers in a scenario. Peers with equal names get a number.
#[derive(Clone, Debug, Default)]
struct Labels {
    known: BTreeMap<(String, String), String>,
    /// The last peer of each name.
    current: BTreeMap<String, String>,
    taken: BTreeSet<String>,
}

impl Labels {
    fn of(&mut self, name: &str, id: &str) -> Option<String> {
        let key = (name.to_owned(), id.to_owned());
        if let Some(label) = self.known.get(&key) {
            return Some(label.clone());
        }
        // It was known by its name only.
        let nameless = (name.to_owned(), String::new());
        if let Some(label) = self.known.remove(&nameless) {
            self.known.insert(key, label.clone());
            return Some(label);
        }
        if self.known.len() >= PEERS_MAX {
            return None;
        }
        let end = (0..=name.len().min(LABEL_BYTES_MAX)).rev().find(|at| name.is_char_boundary(*at))?;
        let plain: String = name[..end].chars().map(|c| if c.is_control() { '_' } else { c }).collect();
        let numbered = (2..).map(|number| format!("{plain}#{number}"));
        let label =
            std::iter::once(plain.clone()).chain(numbered).find(|label| !self.taken.contains(label))?;
        self.taken.insert(label.clone());
        self.known.insert(key, label.clone());
        self.current.insert(name.to_owned(), label.clone());
        Some(label)
    }
}

/// Reads decisions from the events of masters, in their order.
#[derive(Clone, Debug, Default)]
pub struct DecisionReader {
    labels: Labels,
    /// The group and the sorted members of each epoch, and the labels by name.
    epochs: BTreeMap<String, (u32, Vec<String>)>,
    aborted: BTreeSet<(String, u64, u64)>,
    /// Members of an earlier master return, and repeat what they know.
    restoring: bool,
    /// Whether a limit was exceeded.
    pub too_large: bool,
}

impl DecisionReader {
    /// The name of the peer of an event in the scenario.
    pub fn peer(&mut self, fields: &Map<String, Value>) -> Option<String> {
        let text = |field| fields.get(field).and_then(Value::as_str);
        let label = self.labels.of(text("peer")?, text("peer_id").unwrap_or_default());
        self.too_large |= label.is_none();
        label
    }

    /// The last peer of this name.
    pub fn current(&mut self, name: &str) -> Option<String> {
        match self.labels.current.get(name) {
            Some(label) => Some(label.clone()),
            None => self.labels.of(name, ""),
        }
    }

    /// The group and the members of an epoch.
    pub fn epoch(&self, epoch: &str) -> Option<&(u32, Vec<String>)> {
        self.epochs.get(epoch)
    }

    /// The decision of an event.
    pub fn read(&mut self, event: &str, fields: &Map<String, Value>) -> Option<Decision> {
        let text = |field| fields.get(field).and_then(Value::as_str);
        let number = |field| fields.get(field).and_then(Value::as_u64);
        let group = || number("group").and_then(|group| u32::try_from(group).ok());
        let epoch = || self.epochs.get(text("epoch")?);
        Some(match event {
            "registered" => Decision::Registered { peer: self.peer(fields)? },
            "reconnected" => Decision::Reconnected { peer: self.peer(fields)? },
            "accepted" => Decision::Accepted { peer: self.peer(fields)?, group: group()? },
            "departed" => Decision::Departed { peer: self.peer(fields)?, how: loss(text("how")?)? },
            "epoch_proposed" => {
                let (name, group) = (text("epoch")?.to_owned(), group()?);
                let ring = fields.get("ring")?.as_array()?;
                if number("world")? > WORLD_MAX as u64 || ring.len() > WORLD_MAX {
                    self.too_large = true;
                    return None;
                }
                let mut members = Vec::with_capacity(ring.len());
                for name in ring {
                    members.push(self.current(name.as_str()?)?);
                }
                members.sort_unstable();
                self.epochs.insert(name, (group, members));
                return None;
            }
            "epoch_opened" => {
                let (group, members) = epoch()?.clone();
                Decision::EpochOpened { group, members }
            }
            "epoch_kept" => {
                let (group, members) = epoch()?.clone();
                Decision::EpochKept { group, members }
            }
            "restore_began" | "restore_ended" => {
                self.restoring = event == "restore_began";
                return None;
            }
            "ops_committed" if !self.restoring => {
                Decision::Committed { group: epoch()?.0, count: number("count")? }
            }
            "op_decided" if text("outcome") == Some("committed") && !self.restoring => {
                Decision::Committed { group: epoch()?.0, count: 1 }
            }
            "op_decided" if text("outcome") == Some("aborted") => {
                let group = epoch()?.0;
                let (tag, failure) = (number("tag")?, text("failure")?);
                if !self.aborted.insert((text("epoch")?.to_owned(), tag, number("seq")?)) {
                    return None;
                }
                let failure = failure.chars().take(LABEL_BYTES_MAX).collect();
                Decision::Aborted { group, tag, failure }
            }
            "state_elected" => Decision::StateElected { group: group()?, revision: number("revision")? },
            _ => return None,
        })
    }
}

fn loss(how: &str) -> Option<Loss> {
    Some(match how {
        "left" => Loss::Left,
        "connection_lost" | "silent" | "died" | "not_returned" => Loss::Lost,
        "evicted" | "unreachable" | "misbehaved" | "not_established" | "evicted_before"
        | "state_rejected" => Loss::Evicted,
        _ => return None,
    })
}
