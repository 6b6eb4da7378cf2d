//! The bodies of requests: read whole before anything is done, so that what was only to be tried is never done for real.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::status::Refusal;

/// Options of start, stop, restart, pause and the like; each uses its own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Options {
    /// Start with the CPUs stopped.
    pub(super) paused: bool,
    /// Of a stop.
    pub(super) grace_period: Option<i64>,
    /// Of a restart.
    pub(super) grace_period_seconds: Option<i64>,
    dry_run: Option<Vec<String>>,
}

/// The options in `body`; nothing asks for nothing.
pub(super) fn read<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("Can not unmarshal Request body: {error}")))
}

/// True when nothing is to be changed.
pub(super) fn is_dry_run(words: &[String]) -> Result<bool, Refusal> {
    match words.iter().find(|word| *word != "All") {
        Some(word) => {
            Err(Refusal::bad_request(format!("dryRun: Unsupported value: {word:?}: supported values: \"All\"")))
        }
        None => Ok(!words.is_empty()),
    }
}

impl Options {
    /// What `body` asks for; nothing asks for nothing.
    pub(super) fn of(body: &[u8]) -> Result<Options, Refusal> {
        let options: Options = read(body)?;
        is_dry_run(options.dry_run.as_deref().unwrap_or_default())?;
        Ok(options)
    }

    /// True when nothing is to be changed.
    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|words| !words.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dry_run_is_read_from_the_options() {
        #[track_caller]
        fn check(body: &str, expect: Result<bool, &str>) {
            let found = Options::of(body.as_bytes()).map(|options| options.is_dry_run());
            assert_eq!(found, expect.map_err(Refusal::bad_request), "{body}");
        }
        check("", Ok(false));
        check("\n", Ok(false));
        check("{}", Ok(false));
        check(r#"{"dryRun":null}"#, Ok(false));
        check(r#"{"dryRun":[]}"#, Ok(false));
        check(r#"{"dryRun":["All"],"gracePeriod":0}"#, Ok(true));
        check(r#"{"dryRun":["Some"]}"#, Err("dryRun: Unsupported value: \"Some\": supported values: \"All\""));
        assert!(Options::of(b"{\"dryRun").is_err_and(|refusal| refusal.message.starts_with("Can not unmarshal")));
    }
}
