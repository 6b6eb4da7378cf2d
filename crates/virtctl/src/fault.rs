//! What went wrong, in the words shown to people: `error: what: why`, then a hint where there is one.

use std::fmt;
use std::process::ExitCode;

use meta::text::printable;

/// Exit code of a mistake on the command line.
pub(crate) const USAGE: u8 = 2;

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Fault {
    what: String,
    why: Option<String>,
    hint: Option<String>,
    code: u8,
    /// HTTP status of the API server's answer, when it was one.
    pub(crate) status: Option<u16>,
}

/// What a command hands back.
pub(crate) type Outcome = Result<ExitCode, Fault>;

impl Fault {
    /// `what` failed.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, hint: None, code: 1, status: None }
    }

    /// A mistake on the command line.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(what) }
    }

    /// The cause.
    pub(crate) fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// The same, as the failure of what it was part of.
    pub(crate) fn of(mut self, whole: &str) -> Self {
        let cause = self.why.take().unwrap_or(self.what);
        Self { what: whole.to_owned(), why: Some(cause), ..self }
    }

    /// What to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A request to the API server failed.
    pub(crate) fn api(what: impl Into<String>, error: &kube::Error) -> Self {
        let fault = Self::new(what);
        match error {
            kube::Error::Api(status) => fault.answered(status.code, &status.message, &status.reason),
            other => {
                let why = chain(other);
                let hint = connection_hint(&why);
                let fault = fault.because(why);
                match hint {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                }
            }
        }
    }

    /// The API server answered with a failure.
    pub(crate) fn answered(mut self, code: u16, message: &str, reason: &str) -> Self {
        self.status = Some(code);
        let why =
            if message.trim().is_empty() { format!("the server answered {code} {reason}") } else { message.to_owned() };
        let hint = match code {
            401 => Some("the credentials are not accepted: log in again, or choose others with --context or --token"),
            // An authorizer names who it refused; an operation that is refused to everybody does not.
            403 if why.contains("User \"") => Some("`kubectl auth can-i --list` shows what you may do"),
            404 if why.contains("could not find the requested resource") => {
                Some("virtual machine support is not installed, or not ready: kubectl get kubevirt -A")
            }
            404 => Some("look for it with `kubectl get vm,vmi -A`, and choose the namespace with -n"),
            503 => Some("kubectl get pods -n kubevirt shows whether virt-api and virt-handler run"),
            _ => None,
        };
        self.why = Some(why);
        self.hint = self.hint.or(hint.map(str::to_owned));
        self
    }

    /// Whether `words` are part of the cause.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.why.as_ref().is_some_and(|why| why.contains(words))
    }

    /// Prints it, and yields the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("{self}");
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", printable(&self.what))?;
        if let Some(why) = &self.why {
            write!(f, ": {}", printable(why))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {}", printable(hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// The whole cause, each part once.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}

fn connection_hint(why: &str) -> Option<&'static str> {
    if why.contains("Connection refused") || why.contains("ConnectError") && why.contains("refused") {
        Some(
            "nothing listens at the cluster's address: start the cluster with `ferrovirt up`, or choose another with --context",
        )
    } else if why.contains("UnknownIssuer") || why.contains("invalid peer certificate") {
        Some(
            "the server's certificate is not signed by the kubeconfig's authority: is the kubeconfig that of this cluster?",
        )
    } else if why.contains("failed to lookup address") {
        Some("the name of the server in the kubeconfig is not known here")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_why_and_what_to_do() {
        let fault =
            Fault::new("cannot start VM default/demo").answered(404, "virtualmachine \"demo\" not found", "NotFound");
        assert_eq!(
            fault.to_string(),
            "error: cannot start VM default/demo: virtualmachine \"demo\" not found\n\
             hint: look for it with `kubectl get vm,vmi -A`, and choose the namespace with -n"
        );
        assert_eq!(
            Fault::new("cannot read key").because("no such file").to_string(),
            "error: cannot read key: no such file"
        );
    }

    #[test]
    fn an_empty_answer_is_still_explained() {
        let fault = Fault::new("x").answered(502, "", "Bad Gateway");
        assert_eq!(fault.to_string(), "error: x: the server answered 502 Bad Gateway");
    }
}
