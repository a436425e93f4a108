//! How connections are protected: with a token or certificates all are encrypted and authenticated, without them those that leave
//! the host are encrypted.

use crate::Error;
use crate::error::invalid;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::tls::{Encryption, Security, SecurityError, TlsFiles};
use ringfold_settings::{Settings, table};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Off loopback, a fake acceptor can guess shorter tokens from the proof of a dialler.
const TOKEN_BYTES_MIN: usize = 16;

/// New keys.
pub(crate) fn keys(
    token: &JoinToken,
    tls: Option<&TlsFiles>,
    is_insecure: bool,
) -> Result<Arc<Security>, Error> {
    let made = match tls.cloned() {
        Some(_) if is_insecure => {
            return Err(invalid!(
                "certificates were given, and encryption is turned off: choose one of them"
            ));
        }
        Some(files) => Security::with_certificates(files),
        None if is_insecure => Security::new(Encryption::Never),
        None if token.is_none() => Security::new(Encryption::OffLoopback),
        None => Security::new(Encryption::Always),
    };
    made.map(Arc::new).map_err(|error| match error {
        SecurityError::Certificates(error) => invalid!("{error}"),
        SecurityError::Keys(_) => Error::system("starting failed", &std::io::Error::from(error)),
    })
}

/// Checks that this end may dial these addresses with this token, and warns if nothing is authenticated.
pub(crate) fn check_dial(
    token: &JoinToken,
    security: &Security,
    addresses: &[SocketAddr],
    settings: &Settings,
) -> Result<(), Error> {
    let Some(address) = addresses.iter().find(|address| is_off_loopback(address.ip())) else {
        return Ok(());
    };
    if security.has_certificates() {
        return Ok(());
    }
    if token.is_none() {
        check_unauthenticated(&format!("the connection to {address}"), settings)?;
        tracing::warn!(
            "connecting to {address} without a join token or certificates: the connection is encrypted, but anyone may be at its \
             other end. Make a token with `ringfold keys token`, and give it to the master and all peers"
        );
        return Ok(());
    }
    check_length(token, "join token")
}

/// Checks that a token cannot be guessed, if there is one.
pub(crate) fn check_length(token: &JoinToken, what: &str) -> Result<(), Error> {
    let bytes = token.shortest();
    if token.is_none() || bytes >= TOKEN_BYTES_MIN {
        return Ok(());
    }
    Err(invalid!(
        "invalid {what} of {bytes} bytes: off loopback it must have at least {TOKEN_BYTES_MIN}, since a short one can be guessed. \
         Make one with `ringfold keys token`"
    ))
}

/// Fails if the settings require authentication.
pub(crate) fn check_unauthenticated(what: &str, settings: &Settings) -> Result<(), Error> {
    match settings.is_on(&table::REQUIRE_AUTH) {
        true => Err(invalid!(
            "{what} is not authenticated, and {} is set: give a join token or certificates",
            settings.source(&table::REQUIRE_AUTH)
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
    use ringfold_settings::{Given, User};

    #[test]
    fn a_token_encrypts_everything() {
        let encryption = |token: &str, insecure| keys(&token.into(), None, insecure).unwrap().encryption();
        assert_eq!(encryption("", false), Encryption::OffLoopback);
        assert_eq!(encryption("a token", false), Encryption::Always);
        assert_eq!(encryption("a token", true), Encryption::Never);
    }

    #[test]
    fn short_tokens_are_for_loopback_only() {
        let near = ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"].map(|text| text.parse().unwrap());
        let far = ["127.0.0.1:1", "10.0.0.7:1"].map(|text| text.parse().unwrap());
        let security = Security::new(Encryption::Always).unwrap();
        let settings = Settings::load(User::Peer, &Given::default()).unwrap();
        let check = |token: &str, addresses: &[SocketAddr]| {
            check_dial(&token.into(), &security, addresses, &settings)
        };
        assert!(check("sesame", &near).is_ok() && check("0123456789abcdef", &far).is_ok());
        let error = check("sesame", &far).unwrap_err();
        assert!(error.to_string().starts_with("invalid join token of 6 bytes: off loopback"), "{error}");
    }
}
