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
        return match this {
            None => Ok(MasterList::single()),
            Some(_) => Err(invalid!("invalid position of this master: no list of masters is given")),
        };
    }
    if masters.len() > MASTERS_MAX {
        return Err(invalid!("too many masters: {} exceed the limit of {MASTERS_MAX}", masters.len()));
    }
    let list = masters.join(",");
    let mut addresses: Vec<Vec<SocketAddr>> = Vec::new();
    for text in masters {
        let found = resolve(text).map_err(|why| invalid!("invalid master address {text:?}: {why}"))?;
        if addresses.iter().flatten().any(|other| found.contains(other)) {
            return Err(invalid!("invalid list of masters {list}: {text} is in it twice"));
        }
        addresses.push(found);
    }
    let mine = |all: &Vec<SocketAddr>| all.iter().any(|at| listening.iter().any(|own| is_at(*own, *at)));
    let found: Vec<_> = addresses.iter().enumerate().filter(|(_, all)| mine(all)).map(|(i, _)| i).collect();
    let listens = listening.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let me = match (this, &found[..]) {
        (Some(index), _) if index >= addresses.len() => {
            return Err(invalid!(
                "invalid position {} of this master: the list has {} masters",
                index + 1,
                addresses.len()
            ));
        }
        (Some(index), found) if !found.is_empty() && !found.contains(&index) => {
            return Err(invalid!(
                "invalid position {} of this master: it listens on {listens}, which is master {} of the list {list}",
                index + 1,
                found[0] + 1
            ));
        }
        (Some(index), _) => index,
        (None, [index]) => *index,
        (None, []) => {
            return Err(invalid!(
                "this master is not in the list of masters {list}: it listens on {listens}. Listen on an address of the list \
                 (--listen), or say which master of the list this is (--this-master, or this_master in Python)"
            ));
        }
        (None, _) => {
            return Err(invalid!(
                "this master listens on several addresses of the list of masters {list}: listen on one of them (--listen), or \
                 say which master of the list this is (--this-master, or this_master in Python)"
            ));
        }
    };
    Ok(MasterList { addresses, me: me as u16 })
}

/// The addresses of a master at which it can be dialled.
fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    if text.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err("expected host:port".into());
    }
    let found = text.to_socket_addrs().map_err(|e| e.to_string())?;
    let found: Vec<_> = found.filter(|at| !at.ip().is_unspecified() && at.port() != 0).collect();
    if found.is_empty() { Err("peers cannot dial it".into()) } else { Ok(found) }
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

    fn position(masters: &[&str], this: Option<usize>, listening: &str) -> Result<u16, String> {
        let masters: Vec<_> = masters.iter().map(|text| text.to_string()).collect();
        let list = master_list(&masters, this, &[listening.parse().unwrap()]);
        list.map(|list| list.me).map_err(|e| e.to_string())
    }

    #[test]
    fn a_master_finds_itself_by_its_address() {
        let list = ["127.0.0.1:7001", "127.0.0.1:7002", "192.0.2.1:7003"];
        assert_eq!(position(&list, None, "127.0.0.1:7002"), Ok(1));
        assert_eq!(position(&list, None, "0.0.0.0:7001"), Ok(0));
        assert_eq!(position(&list, Some(2), "0.0.0.0:7003"), Ok(2));
    }

    #[test]
    fn an_invalid_list_or_position_is_an_error() {
        let list = ["127.0.0.1:7001", "127.0.0.1:7002", "192.0.2.1:7003"];
        let cases: [(&[&str], _, _, _); 8] = [
            (&list, None, "0.0.0.0:7003", "not in the list of masters 127.0.0.1:7001,"),
            (&list, Some(3), "127.0.0.1:7001", "invalid position 4 of this master: the list has 3 masters"),
            (&list, Some(1), "127.0.0.1:7001", "which is master 1 of the list"),
            (&[], Some(1), "127.0.0.1:7001", "no list of masters is given"),
            (&["127.0.0.1:7001", "127.0.0.1:7001"], None, "127.0.0.1:7002", "127.0.0.1:7001 is in it twice"),
            (&["127.0.0.1:7001", "127.0.0.2:7001"], None, "0.0.0.0:7001", "several addresses of the list"),
            (&["0.0.0.0:7001"], None, "0.0.0.0:7001", "peers cannot dial it"),
            (&["127.0.0.1"], None, "127.0.0.1:7001", "expected host:port"),
        ];
        for (masters, this, listening, why) in cases {
            let error = position(masters, this, listening).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
