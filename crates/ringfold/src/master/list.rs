//! The list of a run's masters.

use crate::Error;
use crate::error::invalid;
use ringfold_proto::coordinator::MasterList;
use ringfold_proto::limits::MASTERS_MAX;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Resolves the list, and finds this master in it by the addresses that it listens on.
pub(super) fn master_list(
    masters: &[String],
    this: Option<usize>,
    listening: &[SocketAddr],
) -> Result<MasterList, Error> {
    if masters.is_empty() {
        return Ok(MasterList::single());
    }
    if masters.len() > MASTERS_MAX {
        return Err(invalid!("too many masters: {} exceed the limit of {MASTERS_MAX}", masters.len()));
    }
    let mut addresses = Vec::new();
    for text in masters {
        let found = text.to_socket_addrs().map_err(|e| invalid!("invalid master address {text:?}: {e}"))?;
        addresses.push(found.filter(|at| !at.ip().is_unspecified() && at.port() != 0).collect::<Vec<_>>());
        if addresses.last().is_some_and(Vec::is_empty) {
            return Err(invalid!("invalid master address {text:?}: peers cannot dial it"));
        }
    }
    let mine = |all: &Vec<SocketAddr>| all.iter().any(|at| listening.iter().any(|own| is_at(*own, *at)));
    let found: Vec<_> = addresses.iter().enumerate().filter(|(_, all)| mine(all)).map(|(i, _)| i).collect();
    let me = match (this, &found[..]) {
        (Some(index), _) if index < addresses.len() => index,
        (Some(index), _) => {
            return Err(invalid!(
                "invalid position {index} of this master: the list has {}",
                addresses.len()
            ));
        }
        (None, [index]) => *index,
        (None, []) => {
            return Err(invalid!(
                "this master is not in the list of masters {}: it listens on {listening:?}",
                masters.join(",")
            ));
        }
        (None, _) => {
            return Err(invalid!(
                "this master is in the list of masters {} more than once",
                masters.join(",")
            ));
        }
    };
    Ok(MasterList { addresses, me: me as u16 })
}

/// Whether a process that listens on `own` can be dialled at `at`.
fn is_at(own: SocketAddr, at: SocketAddr) -> bool {
    let (own_ip, ip) = (own.ip().to_canonical(), at.ip().to_canonical());
    own.port() == at.port() && (own_ip == ip || (own_ip.is_unspecified() && is_local(ip)))
}

/// Whether this host has the address.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(masters: &[&str], listening: &str) -> Result<u16, Error> {
        let masters: Vec<_> = masters.iter().map(|text| text.to_string()).collect();
        master_list(&masters, None, &[listening.parse().unwrap()]).map(|list| list.me)
    }

    #[test]
    fn a_master_finds_itself_by_its_address() {
        let list = ["127.0.0.1:7001", "127.0.0.1:7002", "192.0.2.1:7003"];
        assert_eq!(position(&list, "127.0.0.1:7002"), Ok(1));
        assert_eq!(position(&list, "0.0.0.0:7001"), Ok(0));
        let error = position(&list, "0.0.0.0:7003").unwrap_err();
        assert!(error.to_string().contains("this master is not in the list of masters"), "{error}");
        assert!(position(&["127.0.0.1:7001", "127.0.0.1:7001"], "127.0.0.1:7001").is_err());
        assert!(position(&["0.0.0.0:7001"], "0.0.0.0:7001").is_err());
    }
}
