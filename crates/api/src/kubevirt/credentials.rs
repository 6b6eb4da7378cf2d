//! Credentials that a guest's agent is given: whose they may be, and where the launcher finds them. Pure.

/// Bytes of the longest name of a guest's user.
const LONGEST_USER: usize = 256;

/// The volume by which a launcher's pod has a Secret with credentials, and its directory there.
pub fn volume(secret: &str) -> String {
    format!("{secret}-access-cred")
}

/// Whether a guest can have a user called so. What no guest has is refused before it reaches an agent: there it might be
/// taken for an option, or for more than one field of a file.
pub fn is_user(name: &str) -> bool {
    let breaks = |c: char| c.is_control() || matches!(c, ':' | '/');
    !name.is_empty() && name.len() <= LONGEST_USER && !name.starts_with('-') && !name.contains(breaks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_user_has_is_none() {
        for good in ["root", "cloud-user", "first.last", "DOMAIN\\someone", "Jürgen Müller", "a$"] {
            assert!(is_user(good), "{good}");
        }
        for bad in ["", "-x", "a:b", "../root", "a\nb", "a\0b", &"x".repeat(257)] {
            assert!(!is_user(bad), "{bad}");
        }
    }
}
