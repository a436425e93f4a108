//! The command that makes secrets and certificates.

use crate::exit_code::SUCCESS;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use ringfold::journal::format_time;
use ringfold_fabric::tls::PeerIdentity;
use ringfold_fabric::tls::issue::{Issued, IssuedCertificate, issue, issued_in, new_ca};
use ringfold_proto::handshake::Role;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// The files of a CA.
const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const REVOKED: &str = "revoked";
/// All certificates that were issued, wherever they were written.
const ISSUED: &str = "issued.pem";

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
    /// Give it to the master and all peers, by RINGFOLD_JOIN_TOKEN_FILE or RINGFOLD_JOIN_TOKEN. Who has it can join the run and read its
    /// data; for all others the connections of the run are encrypted.
    Token {
        /// The file to write, which only its owner can read; it must not exist [default: standard output]
        #[arg(long, value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Make the CA of a run: ca.pem for all machines, and ca.key, which signs certificates and stays here
    New {
        /// The name of the run: a-z, 0-9 and -
        #[arg(long, value_name = "NAME")]
        run: String,
        /// The directory to write to; it is created, and must not have a CA
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
    },
    /// Make the certificate of a peer, a master or a relay: NAME.pem and NAME.key
    ///
    /// Give both files and ca.pem to one machine, by --tls-ca, --tls-cert and --tls-key or RINGFOLD_TLS_CA, RINGFOLD_TLS_CERT and
    /// RINGFOLD_TLS_KEY. Several processes may use one certificate.
    Issue {
        /// The name: a-z, 0-9 and -
        name: String,
        /// What it may do: peer, observer, admin, relay, or master, which may also act as a peer
        #[arg(long, value_name = "ROLE", default_value = "peer")]
        role: Role,
        /// How long the certificate is valid
        #[arg(long, value_name = "DAYS", default_value_t = 365)]
        days: u32,
        /// The directory with ca.pem and ca.key
        #[arg(long, value_name = "DIR", default_value = ".")]
        ca: PathBuf,
        /// The directory to write to [default: that of the CA]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Replace the files of an earlier certificate. Processes that use them read them again
        #[arg(long)]
        replace: bool,
    },
    /// Add a certificate to the revocation list of a run
    ///
    /// Give the list to the master, by --tls-revoked or RINGFOLD_TLS_REVOKED. It reads the list again when it changes, and disconnects
    /// peers that are on it.
    Revoke {
        /// The name, for all its certificates, or a file with the certificate
        certificate: String,
        /// The directory with the CA and the list, a file named revoked
        #[arg(long, value_name = "DIR", default_value = ".")]
        ca: PathBuf,
    },
    /// List the certificates of a run: names, roles, when they expire, and which are revoked
    List {
        /// The directory with the CA
        #[arg(long, value_name = "DIR", default_value = ".")]
        ca: PathBuf,
    },
}

impl KeysArguments {
    /// Makes what was asked for, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        match &self.command {
            KeysCommand::Token { out: None } => println!("{}", token()?),
            KeysCommand::Token { out: Some(path) } => {
                create(path, 0o600, &format!("{}\n", token()?))?;
                println!("wrote a join token to {}: give it to the master and all peers", path.display());
            }
            KeysCommand::New { run, out } => {
                let Issued { certificate, key } = new_ca(run).map_err(|error| anyhow!(error))?;
                std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
                create(&out.join(CA_KEY), 0o600, &key)?;
                create(&out.join(CA), 0o644, &certificate)?;
                let [ca, key] = [CA, CA_KEY].map(|name| out.join(name).display().to_string());
                println!("made the CA of {run}: {ca} is for all machines, {key} stays here");
            }
            KeysCommand::Issue { name, role, days, ca, out, replace } => {
                let authority = Issued { certificate: read(&ca.join(CA))?, key: read(&ca.join(CA_KEY))? };
                let identity = PeerIdentity { name: name.clone(), role: *role };
                let issued = issue(&authority, &identity, *days).map_err(|error| anyhow!(error))?;
                let out = out.as_ref().unwrap_or(ca);
                let write = if *replace { replace_file } else { create };
                write(&out.join(format!("{name}.key")), 0o600, &issued.key)?;
                let path = out.join(format!("{name}.pem"));
                append(&ca.join(ISSUED), &issued.certificate)?;
                write(&path, 0o644, &issued.certificate)?;
                let path = path.display();
                println!("issued {path} and its key to {name}: role {role}, valid for {days} days");
            }
            KeysCommand::Revoke { certificate, ca } => revoke(certificate, ca)?,
            KeysCommand::List { ca } => {
                println!("{:40} {:8} {:27} revoked", "name", "role", "expires");
                for (is_revoked, issued) in known(ca)? {
                    let PeerIdentity { name, role } = issued.identity;
                    let expires = issued.valid_until.map_or_else(|| "unknown".into(), format_time);
                    let state = if is_revoked { "revoked" } else { "" };
                    println!("{name:40} {:8} {expires:27} {state}", role.as_str());
                }
            }
        }
        Ok(SUCCESS)
    }
}

/// The certificates that the CA in a directory has issued, and whether they are revoked.
fn known(ca: &Path) -> Result<Vec<(bool, IssuedCertificate)>> {
    read(&ca.join(CA)).context("no CA is here: name its directory with --ca")?;
    let optional = |name| match std::fs::read_to_string(ca.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        found => found.with_context(|| format!("cannot read {}", ca.join(name).display())),
    };
    let listed = optional(REVOKED)?.to_ascii_lowercase();
    let listed: Vec<_> = listed.lines().map(|line| line.split('#').next().unwrap_or("").trim()).collect();
    let is_revoked = |one: &IssuedCertificate| {
        listed.contains(&one.identity.name.as_str()) || listed.contains(&one.fingerprint.as_str())
    };
    Ok(issued_in(&optional(ISSUED)?).into_iter().map(|one| (is_revoked(&one), one)).collect())
}

/// Adds a line to the revocation list of a CA. A name stays revoked for ever, a file is revoked by its fingerprint.
fn revoke(certificate: &str, ca: &Path) -> Result<()> {
    let known = known(ca)?;
    let names: BTreeSet<_> = known.iter().map(|(_, one)| one.identity.name.as_str()).collect();
    let line = if Path::new(certificate).is_file() {
        let found = issued_in(&read(Path::new(certificate))?).into_iter().next();
        let found =
            found.with_context(|| format!("{certificate} has no certificate of `ringfold keys issue`"))?;
        format!("{} # {certificate}\n", found.fingerprint)
    } else if names.contains(certificate) {
        format!("{certificate}\n")
    } else {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "no certificate of {certificate:?} was issued by the CA in {}: there are {}. Give the file of one that is not listed",
            ca.display(),
            if names.is_empty() { "none" } else { &names }
        );
    };
    let list = ca.join(REVOKED);
    append(&list, &line)?;
    println!("revoked {certificate} in {}: give it to the master, by --tls-revoked", list.display());
    Ok(())
}

fn append(path: &Path, text: &str) -> Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let mut file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file that must not exist.
fn create(path: &Path, mode: u32, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a file at once: its readers see the old one or the new one.
fn replace_file(path: &Path, mode: u32, text: &str) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let next = PathBuf::from(name);
    create(&next, mode, text)?;
    std::fs::rename(&next, path).with_context(|| format!("cannot replace {}", path.display()))
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

    #[test]
    fn certificates_are_issued_replaced_and_revoked() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("ringfold-keys-ca-{}", std::process::id()));
        let run = |command| KeysArguments { command }.run();
        let new = || run(KeysCommand::New { run: "run-1".into(), out: dir.clone() });
        let issue = |name: &str, role, replace| {
            let (name, ca) = (name.to_owned(), dir.clone());
            run(KeysCommand::Issue { name, role, days: 1, ca, out: None, replace })
        };
        let revoke =
            |certificate: &str| run(KeysCommand::Revoke { certificate: certificate.into(), ca: dir.clone() });
        assert!(issue("alice", Role::Peer, false).unwrap_err().to_string().contains("cannot read"));
        new().unwrap();
        assert!(new().unwrap_err().to_string().contains("cannot create"));
        issue("alice", Role::Peer, false).unwrap();
        let first = std::fs::read_to_string(dir.join("alice.pem")).unwrap();
        assert!(issue("alice", Role::Peer, false).is_err() && issue("Alice", Role::Peer, false).is_err());
        issue("alice", Role::Master, true).unwrap();
        assert_ne!(first, std::fs::read_to_string(dir.join("alice.pem")).unwrap());
        for key in ["ca.key", "alice.key"] {
            assert_eq!(std::fs::metadata(dir.join(key)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 5, "nothing else is left");
        let file = |name: &str| dir.join(name);
        let files = ringfold::TlsFiles::new(file("ca.pem"), file("alice.pem"), file("alice.key"));
        let start =
            || ringfold_fabric::tls::Security::with_certificates(files.clone().revoked(file("revoked")));
        let error = revoke("bob").unwrap_err().to_string();
        assert!(error.contains("no certificate of \"bob\"") && error.contains("there are alice."), "{error}");
        assert!(!file("revoked").exists(), "nothing was written");
        issue("bob", Role::Admin, false).unwrap();
        revoke("bob").unwrap();
        assert!(start().is_ok());
        revoke(file("alice.pem").to_str().unwrap()).unwrap();
        assert!(start().unwrap_err().to_string().contains("was revoked"));
        assert!(revoke("no such file").is_err() && revoke(file("ca.pem").to_str().unwrap()).is_err());
        let listed = known(&dir).unwrap().into_iter();
        let shown = |(state, one): (bool, IssuedCertificate)| {
            (one.identity.to_string(), state, one.valid_until.is_some())
        };
        let found: Vec<_> = listed.map(shown).collect();
        let of = |name: &str, is_revoked| (format!("{name}.ringfold"), is_revoked, true);
        assert_eq!(found, [of("alice.peer", false), of("alice.master", true), of("bob.admin", true)]);
        let elsewhere = KeysCommand::Revoke { certificate: "alice".into(), ca: dir.join("none") };
        assert!(run(elsewhere).unwrap_err().to_string().contains("no CA is here"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
