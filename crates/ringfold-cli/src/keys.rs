//! The command that makes secrets.

use crate::exit_code::SUCCESS;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// The arguments of `ringfold keys`.
#[derive(Args, Debug)]
pub struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Subcommand, Debug)]
enum KeysCommand {
    /// Make a join token: 256 random bits
    ///
    /// Give it to the master and all peers, by PCCL_JOIN_TOKEN_FILE or PCCL_JOIN_TOKEN. Who has it can join the run and read its
    /// data; for all others the connections of the run are encrypted.
    Token {
        /// The file to write, which only its owner can read; it must not exist [default: standard output]
        #[arg(long, value_name = "PATH")]
        out: Option<PathBuf>,
    },
}

impl KeysArguments {
    /// Makes what was asked for, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let KeysCommand::Token { out } = &self.command;
        let token = token()?;
        match out {
            None => println!("{token}"),
            Some(path) => {
                let mut file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)
                    .with_context(|| format!("cannot create {}", path.display()))?;
                writeln!(file, "{token}").with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(SUCCESS)
    }
}

fn token() -> Result<String> {
    let bytes: [u8; TOKEN_BYTES] = ringfold_fabric::random::bytes()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert_eq!((one.len(), other.len()), (64, 64));
        assert_ne!(one, other);
    }

    #[test]
    fn a_file_is_not_overwritten_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("ringfold-keys-{}", std::process::id()));
        let make = || KeysArguments { command: KeysCommand::Token { out: Some(path.clone()) } }.run();
        make().unwrap();
        let (text, mode) =
            (std::fs::read_to_string(&path).unwrap(), std::fs::metadata(&path).unwrap().permissions().mode());
        assert_eq!((text.trim().len(), mode & 0o777), (64, 0o600));
        assert!(make().unwrap_err().to_string().contains("cannot create"));
        std::fs::remove_file(&path).unwrap();
    }
}
