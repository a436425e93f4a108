//! The join token from the environment; the C API has no argument for it.

use crate::result::CallError;
use ringfold::JoinToken;
use std::env;

/// Reads the token from `PCCL_JOIN_TOKEN`, or from the file that `PCCL_JOIN_TOKEN_FILE` names.
pub fn read_environment() -> Result<Option<JoinToken>, CallError> {
    choose_token(read_variable("PCCL_JOIN_TOKEN")?, read_variable("PCCL_JOIN_TOKEN_FILE")?)
}

fn choose_token(token: Option<String>, file: Option<String>) -> Result<Option<JoinToken>, CallError> {
    match (token, file) {
        (Some(token), _) => Ok(Some(token.into())),
        (None, None) => Ok(None),
        (None, Some(path)) => JoinToken::from_file(&path)
            .map(Some)
            .map_err(|error| CallError::invalid_argument(format!("invalid PCCL_JOIN_TOKEN_FILE: {error}"))),
    }
}

fn read_variable(name: &str) -> Result<Option<String>, CallError> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|v| !v.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => {
            Err(CallError::invalid_argument(format!("invalid {name}: not UTF-8")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_has_priority_over_the_file_and_the_file_must_hold_one() {
        let missing = || Some("/nonexistent/token".to_owned());
        let chosen = |token: Option<&str>, file| choose_token(token.map(Into::into), file);
        assert!(chosen(Some("a"), missing()).unwrap().unwrap().shortest() == 1);
        assert!(chosen(None, None).unwrap().is_none());
        assert!(chosen(None, missing()).is_err());
        let path = env::temp_dir().join(format!("ringfold-token-{}", std::process::id()));
        let name = || Some(path.to_str().unwrap().to_owned());
        std::fs::write(&path, " secret\n").unwrap();
        assert!(chosen(None, name()).unwrap().unwrap().shortest() == 6);
        std::fs::write(&path, "\n").unwrap();
        assert!(chosen(None, name()).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
