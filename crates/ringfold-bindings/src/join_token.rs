//! The join token, which C has no argument for: it comes from the environment.

use crate::result::Failure;
use std::env;

/// The token of `PCCL_JOIN_TOKEN`, or of the file that `PCCL_JOIN_TOKEN_FILE` names, if any.
pub fn from_environment() -> Result<Option<String>, Failure> {
    choose(variable("PCCL_JOIN_TOKEN")?, variable("PCCL_JOIN_TOKEN_FILE")?)
}

fn choose(token: Option<String>, file: Option<String>) -> Result<Option<String>, Failure> {
    let Some(path) = file.filter(|_| token.is_none()) else { return Ok(token) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::argument(format!("PCCL_JOIN_TOKEN_FILE: {path} can't be read: {e}")))?;
    match text.trim() {
        // A run that was meant to be guarded must not be open because a file was empty.
        "" => Err(Failure::argument(format!("PCCL_JOIN_TOKEN_FILE: {path} is empty"))),
        token => Ok(Some(token.to_owned())),
    }
}

fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|v| !v.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(Failure::argument(format!("{name} is no UTF-8"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_preferred_to_a_file_and_a_file_must_hold_one() {
        let missing = || Some("/nonexistent/token".to_owned());
        assert_eq!(choose(Some("a".into()), missing()), Ok(Some("a".into())));
        assert_eq!(choose(None, None), Ok(None));
        assert!(choose(None, missing()).is_err());
        let path = env::temp_dir().join(format!("ringfold-token-{}", std::process::id()));
        let name = || Some(path.to_str().unwrap().to_owned());
        std::fs::write(&path, " secret\n").unwrap();
        assert_eq!(choose(None, name()), Ok(Some("secret".into())));
        std::fs::write(&path, "\n").unwrap();
        assert!(choose(None, name()).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
