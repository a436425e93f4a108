//! The replies of `lab-peer`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// One line of `lab-peer`: `ok COMMAND key=value ...` or `failed COMMAND key=value ... message=TEXT`. Steps of its
/// loop are `step loop key=value ...`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerReply {
    /// `ok`, `failed` or `step`.
    pub status: ReplyStatus,
    /// The command.
    pub command: String,
    fields: BTreeMap<String, String>,
    line: String,
}

/// The status of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyStatus {
    /// It succeeded.
    Ok,
    /// It failed.
    Failed,
    /// A step of it succeeded; it continues.
    Step,
}

impl PeerReply {
    /// Whether the command succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == ReplyStatus::Ok
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// The value of a required field.
    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        self.field(name).unwrap_or_else(|| panic!("no {name} in {self}"))
    }

    /// The number in a required field.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let text = self.text(name);
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.unwrap_or_else(|_| panic!("invalid number {name} in {self}"))
    }
}

impl FromStr for PeerReply {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        // The message is the rest of the line and may contain anything.
        let (head, message) = match line.split_once(" message=") {
            Some((head, message)) => (head, Some(message)),
            None => (line, None),
        };
        let mut words = head.split_whitespace();
        let status = match words.next() {
            Some("ok") => ReplyStatus::Ok,
            Some("failed") => ReplyStatus::Failed,
            Some("step") => ReplyStatus::Step,
            _ => return Err(()),
        };
        let command = words.next().ok_or(())?.to_owned();
        let mut fields = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(())?;
            fields.insert(name.to_owned(), value.to_owned());
        }
        fields.extend(message.map(|message| ("message".to_owned(), message.to_owned())));
        Ok(Self { status, command, fields, line: line.to_owned() })
    }
}

impl fmt::Display for PeerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = "failed reduce tag=7 kind=Aborted participants=0x1f message=the peer a=b was lost";
        let reply: PeerReply = line.parse().expect("an reply");
        assert!(!reply.is_ok());
        assert_eq!(
            (reply.command.as_str(), reply.number("tag"), reply.number("participants")),
            ("reduce", 7, 31)
        );
        assert_eq!((reply.text("message"), reply.field("world")), ("the peer a=b was lost", None));
        assert_eq!(reply.to_string(), line);
        assert!("got something".parse::<PeerReply>().is_err());
        assert!("ok".parse::<PeerReply>().is_err());
    }
}
