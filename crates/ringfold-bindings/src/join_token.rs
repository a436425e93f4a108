//! The join token from the environment; the C API has no argument for it.

use crate::result::CallError;
use std::env;

/// Reads the token from `PCCL_JOIN_TOKEN`, or from the file that `PCCL_JOIN_TOKEN_FILE` names.
pub fn read_environment() -> Result<Option<String>, CallError> {
    choose_token(read_variable("PCCL_JOIN_TOKEN")?, read_variable("PCCL_JOIN_TOKEN_FILE")?)
}

fn choose_token(token: Option<String>, file: Option<String>) -> Result<Option<String>, CallError> {
    let Some(path) = file.filter(|_| token.is_none()) else { return Ok(token) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| CallError::invalid_argument(format!("cannot read PCCL_JOIN_TOKEN_FILE {path}: {e}")))?;
    match text.trim() {
        // An empty file must not start a run without a token.
        "" => Err(CallError::invalid_argument(format!(
            "invalid PCCL_JOIN_TOKEN_FILE {path}: the file is empty"
        ))),
        token => Ok(Some(token.to_owned())),
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
        assert_eq!(choose_token(Some("a".into()), missing()), Ok(Some("a".into())));
        assert_eq!(choose_token(None, None), Ok(None));
        assert!(choose_token(None, missing()).is_err());
        let path = env::temp_dir().join(format!("ringfold-token-{}", std::process::id()));
        let name = || Some(path.to_str().unwrap().to_owned());
        std::fs::write(&path, " secret\n").unwrap();
        assert_eq!(choose_token(None, name()), Ok(Some("secret".into())));
        std::fs::write(&path, "\n").unwrap();
        assert!(choose_token(None, name()).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
