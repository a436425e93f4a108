//! How a command starts itself as another process.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::process::Command;

/// The program and its leading arguments. In a Python wheel the program is the interpreter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invocation {
    /// The running program.
    ThisProgram,
    /// Another program, with leading arguments.
    Program(OsString, Vec<OsString>),
}

impl Invocation {
    /// The program and its leading arguments; the running program if there are no words.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words = words.into_iter();
        match words.next() {
            None => Self::ThisProgram,
            Some(program) => Self::Program(program, words.collect()),
        }
    }

    /// A command to which the arguments can be added.
    pub(crate) fn command(&self) -> Result<Command> {
        match self {
            Self::ThisProgram => {
                Ok(Command::new(std::env::current_exe().context("cannot find this program")?))
            }
            Self::Program(program, leading) => {
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
    fn the_first_word_is_the_program_and_no_word_is_this_program() {
        let words = ["python", "-m", "ringfold"].map(OsString::from);
        let command = Invocation::of(words).command().unwrap();
        assert_eq!(command.get_program(), "python");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["-m", "ringfold"]);
        let command = Invocation::of([]).command().unwrap();
        assert_eq!(command.get_program(), std::env::current_exe().unwrap());
    }
}
