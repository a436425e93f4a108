//! Rank, world size and bootstrap address from the environment of a launcher.

use super::bootstrap::Bootstrap;
use crate::Error;
use crate::error::invalid;

/// The settings of a group that a launcher has set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Environment {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) bootstrap: Bootstrap,
}

/// Variables with rank and world size, in the order in which they are tried.
const RANK_VARIABLES: [(&str, &str); 5] = [
    ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
];

impl Environment {
    /// The variables of a launcher. `at` is the setting `bootstrap`, which has priority over its address.
    pub(super) fn read(at: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let (rank, world) = rank_and_world(&variable)?;
        if world == 0 || rank >= world {
            return Err(invalid!("invalid rank {rank} of {world}: must be less than the world size"));
        }
        Ok(Self { rank, world, bootstrap: bootstrap(at, &variable)? })
    }
}

fn rank_and_world(variable: &impl Fn(&str) -> Option<String>) -> Result<(usize, usize), Error> {
    for (rank, size) in RANK_VARIABLES {
        match (variable(rank), variable(size)) {
            (None, None) => {}
            (Some(a), Some(b)) => return Ok((number(rank, &a)?, number(size, &b)?)),
            (None, Some(_)) => return Err(invalid!("{size} is set, but {rank} is not")),
            (Some(_), None) => return Err(invalid!("{rank} is set, but {size} is not")),
        }
    }
    Err(invalid!(
        "rank and world size are not in the environment: set RANK and WORLD_SIZE, or use a launcher"
    ))
}

/// The bootstrap of a text: `host:port`, or `file:` and a path.
pub(super) fn parse_bootstrap(at: &str) -> Bootstrap {
    at.strip_prefix("file:")
        .map_or_else(|| Bootstrap::Address(at.to_owned()), |path| Bootstrap::File(path.into()))
}

fn bootstrap(at: Option<&str>, variable: &impl Fn(&str) -> Option<String>) -> Result<Bootstrap, Error> {
    if let Some(at) = at {
        return Ok(parse_bootstrap(at));
    }
    let (Some(address), Some(port)) = (variable("MASTER_ADDR"), variable("MASTER_PORT")) else {
        return Err(invalid!(
            "the bootstrap address is not in the environment: set MASTER_ADDR and MASTER_PORT, or RINGFOLD_BOOTSTRAP"
        ));
    };
    let mut port =
        port.parse::<u16>().map_err(|_| invalid!("invalid MASTER_PORT {port:?}: not a port number"))?;
    // The agent of torchrun listens on that port.
    if variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        port = port.checked_add(1).unwrap_or(port - 1);
    }
    let address = if address.contains(':') { format!("[{address}]") } else { address };
    Ok(Bootstrap::Address(format!("{address}:{port}")))
}

fn number(name: &str, value: &str) -> Result<usize, Error> {
    value.trim().parse().map_err(|_| invalid!("invalid {name} {value:?}: not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, Error> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
        Environment::read(find("RINGFOLD_BOOTSTRAP").as_deref(), find)
    }

    const AT: [(&str, &str); 2] = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn launchers_are_tried_in_a_fixed_order() {
        let all = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let found = read(&[&all[..], &AT].concat()).unwrap();
        assert_eq!((found.rank, found.world), (3, 4));
        assert_eq!(found.bootstrap, Bootstrap::Address("10.0.0.1:29500".into()));
    }

    #[test]
    fn missing_variables_are_named() {
        let error = |variables: &[(&str, &str)]| read(variables).unwrap_err().to_string();
        assert!(error(&[("RANK", "1")]).contains("WORLD_SIZE is not"));
        assert!(error(&[("RANK", "1"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR"));
        assert!(error(&[]).contains("RANK and WORLD_SIZE"));
        assert!(error(&[("RANK", "2"), ("WORLD_SIZE", "2")]).contains("invalid rank 2 of 2"));
    }

    #[test]
    fn the_port_of_torchruns_agent_is_not_used() {
        let agent = [("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let found = read(&[&agent[..], &AT].concat()).unwrap();
        assert_eq!(found.bootstrap, Bootstrap::Address("10.0.0.1:29501".into()));
        let own = [("RANK", "0"), ("WORLD_SIZE", "2"), ("RINGFOLD_BOOTSTRAP", "file:/shared/meet")];
        assert_eq!(read(&own).unwrap().bootstrap, Bootstrap::File("/shared/meet".into()));
    }
}
