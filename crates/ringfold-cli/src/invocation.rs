//! How a command starts itself as another process.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::process::Command;

/// The words that come before the arguments. Inside a Python interpreter this program is the interpreter, which needs
/// to be told what to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invocation {
    /// The program that runs now.
    ThisProgram,
    /// Another one, with arguments that go before all others.
    Through(OsString, Vec<OsString>),
}

impl Invocation {
    /// The program and its leading arguments; no words at all mean the program that runs now.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words = words.into_iter();
        match words.next() {
            None => Self::ThisProgram,
            Some(program) => Self::Through(program, words.collect()),
        }
    }

    /// To add the arguments to.
    pub(crate) fn command(&self) -> Result<Command> {
        match self {
            Self::ThisProgram => {
                Ok(Command::new(std::env::current_exe().context("can't find this program")?))
            }
            Self::Through(program, leading) => {
                let mut command = Command::new(program);
                command.args(leading);
                Ok(command)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_the_program_and_no_word_is_this_one() {
        let words = ["python", "-m", "ringfold"].map(OsString::from);
        let command = Invocation::of(words).command().unwrap();
        assert_eq!(command.get_program(), "python");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["-m", "ringfold"]);
        let command = Invocation::of([]).command().unwrap();
        assert_eq!(command.get_program(), std::env::current_exe().unwrap());
    }
}
