//! How connections are protected: with a token all are encrypted and authenticated, without one those that leave the host are
//! encrypted.

use crate::Error;
use crate::error::invalid;
use ringfold_fabric::tls::{Encryption, Security, insecure_by_environment};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The environment variable that refuses connections that leave the host without authentication.
const REQUIRE_AUTH_VARIABLE: &str = "RINGFOLD_REQUIRE_AUTH";

/// Off loopback, a fake acceptor can guess shorter tokens from the proof of a dialler.
const TOKEN_BYTES_MIN: usize = 16;

/// New keys. Without `insecure` the environment decides.
pub(crate) fn keys(token: &str, insecure: Option<bool>) -> Result<Arc<Security>, Error> {
    let encryption = match insecure.unwrap_or_else(insecure_by_environment) {
        true => Encryption::Never,
        false if token.is_empty() => Encryption::OffLoopback,
        false => Encryption::Always,
    };
    Security::new(encryption)
        .map(Arc::new)
        .map_err(|error| Error::system("starting failed", &std::io::Error::from(error)))
}

/// Checks that this end may dial these addresses with this token, and warns if nothing is authenticated.
pub(crate) fn check_dial(token: &str, addresses: &[SocketAddr]) -> Result<(), Error> {
    let Some(address) = addresses.iter().find(|address| is_off_loopback(address.ip())) else {
        return Ok(());
    };
    if token.is_empty() {
        check_unauthenticated(&format!("the connection to {address}"))?;
        tracing::warn!(
            "connecting to {address} without a join token: the connection is encrypted, but anyone may be at its other end. Make a \
             token with `ringfold keys token`, and give it to the master and all peers"
        );
    } else if token.len() < TOKEN_BYTES_MIN {
        return Err(invalid!(
            "invalid join token of {} bytes: off loopback it must have at least {TOKEN_BYTES_MIN}, since a short one can be guessed. \
             Make one with `ringfold keys token`",
            token.len()
        ));
    }
    Ok(())
}

/// Fails if the environment requires authentication.
pub(crate) fn check_unauthenticated(what: &str) -> Result<(), Error> {
    let requires = std::env::var(REQUIRE_AUTH_VARIABLE).is_ok_and(|value| !matches!(value.trim(), "" | "0"));
    match requires {
        true => Err(invalid!(
            "{what} is not authenticated, and {REQUIRE_AUTH_VARIABLE} is set: give a join token"
        )),
        false => Ok(()),
    }
}

pub(crate) fn is_off_loopback(address: IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_encrypts_everything() {
        let encryption = |token, insecure| keys(token, insecure).unwrap().encryption();
        assert_eq!(encryption("", Some(false)), Encryption::OffLoopback);
        assert_eq!(encryption("a token", Some(false)), Encryption::Always);
        assert_eq!(encryption("a token", Some(true)), Encryption::Never);
    }

    #[test]
    fn short_tokens_are_for_loopback_only() {
        let near = ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"].map(|text| text.parse().unwrap());
        let far = ["127.0.0.1:1", "10.0.0.7:1"].map(|text| text.parse().unwrap());
        assert!(check_dial("sesame", &near).is_ok() && check_dial("0123456789abcdef", &far).is_ok());
        let error = check_dial("sesame", &far).unwrap_err();
        assert!(error.to_string().starts_with("invalid join token of 6 bytes: off loopback"), "{error}");
    }
}
