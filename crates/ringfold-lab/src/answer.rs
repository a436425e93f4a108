//! What a scripted peer answers.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// One line of a scripted peer: `ok COMMAND key=value ...` or `failed COMMAND key=value ... message=TEXT`; steps of
/// its loop are `step loop key=value ...`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// `ok`, `failed` or `step`.
    pub outcome: Outcome,
    /// The command that is answered.
    pub command: String,
    fields: BTreeMap<String, String>,
    line: String,
}

/// How a command ended, or that it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done.
    Ok,
    /// It was not.
    Failed,
    /// A step of it was done.
    Step,
}

impl Answer {
    /// Whether the command was done.
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// The value of a field, if there is one.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// The value of a field that must be there.
    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        self.field(name).unwrap_or_else(|| panic!("no {name} in {self}"))
    }

    /// The number in a field that must be there.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let text = self.text(name);
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.unwrap_or_else(|_| panic!("{name} is no number in {self}"))
    }
}

impl FromStr for Answer {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        // The message is the rest of the line and may hold anything.
        let (head, message) = match line.split_once(" message=") {
            Some((head, message)) => (head, Some(message)),
            None => (line, None),
        };
        let mut words = head.split_whitespace();
        let outcome = match words.next() {
            Some("ok") => Outcome::Ok,
            Some("failed") => Outcome::Failed,
            Some("step") => Outcome::Step,
            _ => return Err(()),
        };
        let command = words.next().ok_or(())?.to_owned();
        let mut fields = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(())?;
            fields.insert(name.to_owned(), value.to_owned());
        }
        fields.extend(message.map(|message| ("message".to_owned(), message.to_owned())));
        Ok(Self { outcome, command, fields, line: line.to_owned() })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line = "failed reduce tag=7 kind=Aborted parts=0x1f message=the peer a=b was lost";
        let answer: Answer = line.parse().expect("an answer");
        assert!(!answer.is_ok());
        assert_eq!(
            (answer.command.as_str(), answer.number("tag"), answer.number("parts")),
            ("reduce", 7, 31)
        );
        assert_eq!((answer.text("message"), answer.field("world")), ("the peer a=b was lost", None));
        assert_eq!(answer.to_string(), line);
        assert!("got something".parse::<Answer>().is_err());
        assert!("ok".parse::<Answer>().is_err());
    }
}
